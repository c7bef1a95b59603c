"""Congestion control of a queue pair: one algorithm a module, behind ``_pacing_kernels``.

An algorithm is told of notifications and of bytes that leave, and says at what rate; the
pacing in front of it turns the rate into a time before which nothing leaves. To add one:

1. Write ``_<name>_kernels.py`` here. It owns a record of at most ``CC_WORDS`` signed 64-bit
   fields for each queue pair, zeroed when that is reset, and three kernels::

       start(record, line_rate_bps)         a path has been set; sending begins unlimited
       on_notification(record, now)         a CNP has arrived
       allowed_rate(record, nbytes, now)    bit/s, of a packet of nbytes that leaves now

   Time is given in ns and never goes back. Nothing else is to be called, and nothing in
   the kernels may depend on how often they are called.
2. Give it a number in ``state.CongestionAlgorithm``.
3. Name its three kernels in the three dispatching kernels of ``_pacing_kernels``; compiled
   code calls nothing that it does not know by name.

``RoceEngine.enable_congestion_control`` then takes the number. The record belongs to the
sender of data: a requester for its SENDs and WRITEs, a responder for the READs it answers.
"""
