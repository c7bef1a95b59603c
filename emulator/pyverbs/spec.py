"""What steering rules match: they can be written down, and no rule can be made of them."""

from __future__ import annotations

from emulator.pyverbs._absent import AbsentAttributes


class Spec(AbsentAttributes):
    """A part of a rule."""


class EthSpec(Spec):
    """Ethernet header."""


class Ipv4ExtSpec(Spec):
    """IPv4 header."""


class Ipv6Spec(Spec):
    """IPv6 header."""


class TcpUdpSpec(Spec):
    """Ports."""


class GreSpec(Spec):
    """GRE header."""


class MplsSpec(Spec):
    """MPLS label."""


class VxlanSpec(Spec):
    """VXLAN header."""


class EspSpec(Spec):
    """ESP header."""


class FlowTagSpec(Spec):
    """A tag for what matches."""


class FlowDropSpec(Spec):
    """Dropping of what matches."""
