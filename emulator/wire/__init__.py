"""RoCEv2 on the wire: one file per header, checked values in, bytes out.

Each header is a frozen value. ``parse`` takes bytes and answers a value or raises
``WireError``; a value that could be built can be emitted, and ``emit`` gives exactly
``NBYTES`` bytes. These codecs are plain and slow: they are what tests, captures and people
read packets with. The engine's kernels build the same bytes in place.

Section numbers are those of the InfiniBand Architecture Specification volume 1, release 1.7
("IBTA 1.7"): chapter 9 is the transport layer, annex A17 is RoCEv2.
"""
