"""Work queues of raw packets, which the emulated device does not have."""

from __future__ import annotations

from typing import ClassVar

from emulator.pyverbs._absent import AbsentAttributes, AbsentObject


class WQInitAttr(AbsentAttributes):
    """Attributes of a new work queue."""


class WQAttr(AbsentAttributes):
    """Attributes of a work queue."""


class RwqIndTableInitAttr(AbsentAttributes):
    """Attributes of an indirection table."""


class RxHashConf(AbsentAttributes):
    """How packets are spread over work queues."""


class WQ(AbsentObject):
    """A work queue."""

    _kind: ClassVar[str] = "wq"


class RwqIndTable(AbsentObject):
    """An indirection table of work queues."""

    _kind: ClassVar[str] = "rwq_ind_table"
