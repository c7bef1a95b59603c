"""Connection management: which queue pairs talk to each other, agreed by MADs.

``states`` has the table of states, ``manager`` the machine that it drives, without any I/O;
``service`` runs it over queue pair 1 of a NIC, and ``rendezvous`` finds the NIC behind an IP
address and port.
"""
