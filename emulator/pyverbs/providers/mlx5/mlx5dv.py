"""Direct verbs of ConnectX devices: names only."""

from __future__ import annotations

from emulator.pyverbs._absent import AbsentAttributes, AbsentObject


class Mlx5DVContextAttr(AbsentAttributes):
    """Attributes of a context."""


class Mlx5DVCQInitAttr(AbsentAttributes):
    """Attributes of a completion queue."""


class Mlx5DVQPInitAttr(AbsentAttributes):
    """Attributes of a queue pair."""


class Mlx5DVDCInitAttr(AbsentAttributes):
    """Attributes of a dynamic connection."""


class Mlx5DCIStreamInitAttr(AbsentAttributes):
    """Attributes of streams of a dynamic connection."""


class Mlx5Context(AbsentObject):
    """A context."""


class Mlx5CQ(AbsentObject):
    """A completion queue."""


class Mlx5QP(AbsentObject):
    """A queue pair."""


class Mlx5DevxObj(AbsentObject):
    """An object of the device's command interface."""


class Mlx5UMEM(AbsentObject):
    """Memory of the command interface."""


class Mlx5UAR(AbsentObject):
    """A page of doorbells."""


class Mlx5Cqe64(AbsentObject):
    """A completion as the device writes it."""


class Wqe(AbsentObject):
    """A work request as the device reads it."""


class WqeCtrlSeg(AbsentObject):
    """Its control segment."""


class WqeDataSeg(AbsentObject):
    """A data segment of it."""
