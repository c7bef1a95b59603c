"""The UD receiver: one packet is one message, and what does not fit is silently dropped."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import (
    WC_GRH,
    WC_WITH_IMM,
    complete_recv,
    enter_error,
    wake_solicited,
)
from emulator.roce._emit_kernels import DETH_BYTES, IMM_BYTES
from emulator.roce._memory_kernels import scatter, sges_allowed
from emulator.roce._receive_queue_kernels import receive_domain, take_receive
from emulator.roce.state import counters_at, rqe_at
from emulator.wire._byte_kernels import get_be, put_be
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at
from kvlane.verbs.enums import AccessFlags, WcOpcode, WcStatus

GRH_BYTES = 40
"""Room for the network header at the head of every UD receive (IBTA 1.7 section 11.4.1.2)."""
GRH_OFFSET = 128
"""Where it is put together in the NIC's scratch memory, behind the ICRC's."""

_WITH_IMM = int(Opcode.UD_SEND_ONLY_WITH_IMMEDIATE)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_RECV = int(WcOpcode.RECV)
_IPV4_BYTES = 20
_UDP_BYTES = 8
_PROTOCOL_UDP = 17
_HOP_LIMIT = 64


@kernel
def put_network_header(frame: Any, address: int) -> None:
    """The IP header of a frame in 40 bytes: an IPv4 header fills the last 20 of them.

    Linux lays it out so (``rdma_network_hdr``); the checksum is left at 0.
    """
    out = bytes_at(address, GRH_BYTES)
    out[:] = 0
    if frame.dst_hi == 0 and frame.dst_lo >> 32 == 0xFFFF:
        ip = address + GRH_BYTES - _IPV4_BYTES
        put_be(ip, 0x4500 | frame.tos, 2)
        put_be(ip + 2, _IPV4_BYTES + _UDP_BYTES + frame.length, 2)
        put_be(ip + 4, frame.ip_id, 2)
        put_be(ip + 6, frame.ip_frag, 2)
        put_be(ip + 8, (_HOP_LIMIT << 8) | _PROTOCOL_UDP, 2)
        put_be(ip + 12, frame.src_lo & 0xFFFFFFFF, 4)
        put_be(ip + 16, frame.dst_lo & 0xFFFFFFFF, 4)
        return
    put_be(address, (6 << 28) | (frame.tos << 20) | frame.flow_label, 4)
    put_be(address + 4, _UDP_BYTES + frame.length, 2)
    put_be(address + 6, (_PROTOCOL_UDP << 8) | _HOP_LIMIT, 2)
    put_be(address + 8, frame.src_hi, 8)
    put_be(address + 16, frame.src_lo, 8)
    put_be(address + 24, frame.dst_hi, 8)
    put_be(address + 32, frame.dst_lo, 8)


@kernel
def on_datagram(
    nic: Any, qp: Any, frame: Any, opcode: int, deth: int, length: int, solicited: bool
) -> None:
    """Take a UD packet whose DETH is at ``deth`` and whose payload has ``length`` bytes."""
    counters = counters_at(nic.counters, 0)
    if get_be(deth, 4) != qp.qkey:
        counters.rx_bad_qkey += 1
        return
    counters.rx_accepted += 1
    if length > nic.port_mtu:
        counters.rx_too_long += 1
        return
    if not take_receive(nic, qp):
        counters.rx_no_receive += 1
        return
    rqe = rqe_at(qp.inbox, 0)
    # Dropped without a word, and the receive stays for the next (CVE-2024-40992).
    if GRH_BYTES + length > rqe.length:
        counters.rx_too_long += 1
        return
    pd = receive_domain(nic, qp)
    if not sges_allowed(nic, pd, rqe, _LOCAL_WRITE):
        complete_recv(nic, qp, _LOC_PROT_ERR, _RECV, 0)
        enter_error(nic, qp)
        return
    payload = deth + DETH_BYTES
    if opcode == _WITH_IMM:
        payload += IMM_BYTES
    header = nic.scratch + GRH_OFFSET
    put_network_header(frame, header)
    scatter(nic, pd, rqe, (0, GRH_BYTES), header, _LOCAL_WRITE, False)
    scatter(nic, pd, rqe, (GRH_BYTES, length), payload, _LOCAL_WRITE, False)
    cqe = complete_recv(nic, qp, _SUCCESS, _RECV, GRH_BYTES + length)
    cqe.src_qp = get_be(deth + 4, 4) & 0xFFFFFF
    cqe.wc_flags = WC_GRH
    if opcode == _WITH_IMM:
        cqe.imm = get_be(deth + DETH_BYTES, IMM_BYTES)
        cqe.wc_flags = WC_GRH | WC_WITH_IMM
    if solicited:
        wake_solicited(nic, qp.recv_cq)
