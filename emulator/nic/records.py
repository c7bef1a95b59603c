"""What the kernels of a NIC work on: one record that leads to engine, link and bursts."""

from __future__ import annotations

import numpy as np

from kvlane.rawmem import record_accessor

SCRATCH_WORDS = 8
SOFT_NIC = np.dtype(
    [
        ("engine", "i8"),  # address of the engine's NIC
        ("tx", "i8"),  # address of the BURST that waits to be sent
        ("rx", "i8"),
        ("link_context", "i8"),  # of LinkCalls
        ("link_send", "i8"),
        ("link_receive", "i8"),
        ("link_next_release", "i8"),
        ("take_observed", "i8"),  # (0, now): what replaces the engine's receive while observed
        ("fill_observed", "i8"),
        ("link_fd", "i8"),  # readable when frames have arrived
        ("kick_fd", "i8"),  # eventfd: readable when a sleeper must look again
        ("wanted", "i8"),  # address of the word that says that others wait for the lock
        ("scratch", "i8"),  # address of SCRATCH_WORDS words
        ("sleepers", "i8"),
        ("sleep_until", "i8"),  # the earliest of all who sleep, as long as anybody does
        ("has_more", "i8"),  # 1: sending has stopped for the sake of receiving
        ("closed", "i8"),
        ("fault", "i8"),  # Fault of the last call of a verb by address
    ]
)
"""``has_more`` is there because no timer stands for what is left: a requester that needs no
answers (UC, UD) has none."""

soft_nic_at = record_accessor(SOFT_NIC)
