"""The RoCEv2 transport, sans-IO: frames and time in, frames and completions out.

The engine is one compiled core whose state is records in memory, as a NIC's is. Each
half of a queue pair has its own module: ``_requester`` sends, ``_completer`` takes what
comes back, ``_responder`` serves the peer; ``_receive`` and ``_transmit`` call them.
"""
