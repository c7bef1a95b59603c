"""Sending and receiving of the UDP link by address: what its ``LinkCalls`` names."""

from __future__ import annotations

from emulator.link._udp_receive_kernels import receive_burst
from emulator.link._udp_send_kernels import send_burst
from kvlane.calls import exported


def _send(port: int, burst: int, _second: int, _third: int) -> int:
    return send_burst(port, burst)


def _receive(port: int, burst: int, _now: int, _third: int) -> int:
    return receive_burst(port, burst)


SEND = exported(_send)
RECEIVE = exported(_receive)
