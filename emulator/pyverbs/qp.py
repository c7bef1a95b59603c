"""Queue pairs: how they are made, what can be modified, and what is posted to them."""

from emulator.pyverbs._extended_queue_pair import DataBuffer, QPEx
from emulator.pyverbs._qp_attributes import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from emulator.pyverbs._queue_pair import ECE, QP

__all__ = [
    "ECE",
    "QP",
    "DataBuffer",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
]
