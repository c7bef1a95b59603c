"""What congestion control keeps for a queue pair, in integers like all of the engine's state."""

from __future__ import annotations

import numpy as np

from kvlane.rawmem import record_accessor

CC_NONE = 0
CC_DCQCN = 1

CC = np.dtype(
    [
        (name, "i8")
        for name in (
            "rate",  # allowed now, bit/s
            "target",  # where recovery heads, bit/s
            "line_rate",  # the most, bit/s
            "alpha",  # congestion estimate, in 1/1024
            "limited",  # 0 until the first notification: the line rate holds
            "cut_since_check",  # a notification has come since the last look
            "alpha_time",  # next ageing of alpha
            "decrease_time",  # next look whether to cut
            "increase_time",  # next increase by time
            "bytes_left",  # until the next increase by bytes
            "time_stage",  # increases by time since the last cut
            "byte_stage",  # increases by bytes since the last cut
        )
    ]
)
"""State of one queue pair."""

cc_at = record_accessor(CC)
