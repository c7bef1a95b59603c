"""Direct verbs of Elastic Fabric Adapters: names only."""

from __future__ import annotations

from emulator.pyverbs._absent import AbsentAttributes, AbsentObject


class EfaQPInitAttr(AbsentAttributes):
    """Attributes of a queue pair."""


class EfaDVCQInitAttr(AbsentAttributes):
    """Attributes of a completion queue."""


class EfaContext(AbsentObject):
    """A context."""


class EfaCQ(AbsentObject):
    """A completion queue."""


class SRDQPEx(AbsentObject):
    """A queue pair of the scalable reliable datagram transport."""
