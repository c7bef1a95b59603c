"""What Linux soft-RoCE does at the other end of the wire, scripted: found on a real wire first.

docs/interop.md tells of each; here they hold without a guest to boot.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.pyverbs._cm_terms import Terms, connected_attributes
from emulator.wire.aeth import RNR_TIMER_NS
from emulator.wire.cm import PathRecord, Rep, Req
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers, emit_packet, parse_packet
from emulator.wire.opcode import Opcode
from emulator.wire.packet import RocePacket, emit_icrc
from kvlane.verbs.enums import QpState, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.cm_ports import ports
from tests.support.roce_pair import mapped_gid
from tests.support.roce_script import NAK_SEQUENCE, RNR, Script
from tests.support.roce_work import part, post, statuses, work

MTU = 256
RNR_CODE = 1
"""0.01 ms."""


def test_a_sequence_nak_during_the_wait_for_a_receive_costs_no_retry() -> None:
    """It misses the rest of each message whose first packet met no receive, and says so."""
    retries = 3
    script = Script(options=QpOptions(retry_count=retries, rnr_retry_count=7))
    post(script.port, work(WrOpcode.SEND, [part(script.port.region(2 * MTU))]))
    for _ in range(retries + 2):
        assert script.requests() == ["SEND_FIRST 0", "SEND_LAST 1"]
        script.acknowledge(0, RNR | RNR_CODE)
        script.acknowledge(0, NAK_SEQUENCE)
        assert script.requests() == []
        script.now += RNR_TIMER_NS[RNR_CODE]
    assert script.requests() == ["SEND_FIRST 0", "SEND_LAST 1"]
    script.acknowledge(1)
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]
    assert script.counter("packet_seq_err") == retries + 2


def test_a_sequence_nak_without_such_a_wait_still_costs_one() -> None:
    script = Script(options=QpOptions(retry_count=2))
    post(script.port, work(WrOpcode.SEND, [part(script.port.region(2 * MTU))]))
    for _ in range(2):
        assert script.requests() == ["SEND_FIRST 0", "SEND_LAST 1"]
        script.acknowledge(0, NAK_SEQUENCE)
    assert script.requests() == ["SEND_FIRST 0", "SEND_LAST 1"]
    script.acknowledge(0, NAK_SEQUENCE)
    assert statuses(script.port.poll()) == [WcStatus.RETRY_EXC_ERR]


def test_naks_that_acknowledge_something_are_answered_at_once_and_use_up_nothing() -> None:
    """Soft-RoCE as requester waits for its timer after the second, and gives up after the last."""
    script = Script(options=QpOptions(retry_count=1))
    post(script.port, work(WrOpcode.SEND, [part(script.port.region(5 * MTU))]))
    names = ["SEND_FIRST 0", "SEND_MIDDLE 1", "SEND_MIDDLE 2", "SEND_MIDDLE 3", "SEND_LAST 4"]
    assert script.requests() == names
    for missing in range(1, 5):
        script.acknowledge(missing, NAK_SEQUENCE)
        assert script.requests() == names[missing:]
    script.acknowledge(4)
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


def test_a_responder_is_silent_about_the_rest_of_a_message_that_met_no_receive() -> None:
    """Soft-RoCE sends a NAK for it in every round."""
    script = Script()
    (answer,) = script.request(Opcode.RC_SEND_FIRST, 0, payload=bytes(MTU))
    kind, psn, syndrome = answer.split()
    assert (kind, psn) == ("NAK", "0")
    assert int(syndrome, 16) & 0x60 == RNR
    assert script.request(Opcode.RC_SEND_MIDDLE, 1, payload=bytes(MTU)) == []
    assert script.request(Opcode.RC_SEND_LAST, 2, payload=bytes(MTU)) == []


def test_the_starting_psn_of_connection_management_is_the_others_to_begin_with() -> None:
    """IBTA 1.7 section 12.7.31: where the *remote* end shall begin; both ends must agree on it."""
    ours, theirs = 0x111111, 0x222222
    gid = mapped_gid(7)
    path = PathRecord(local_gid=gid, remote_gid=gid)
    req = Req(
        local_comm_id=1, service_id=2, local_qpn=3, starting_psn=theirs, primary=path, path_mtu=3
    )
    passive = Terms.of_request(gid, req, options=0, starting_psn=ours)
    active = Terms(gid, ours)
    active.take_reply(
        Rep(local_comm_id=1, remote_comm_id=2, local_qpn=3, starting_psn=theirs), options=0
    )
    with ports(1) as (port,):
        for terms in (passive, active):
            ready, _ = connected_attributes(port, terms, QpState.RTR)
            sending, _ = connected_attributes(port, terms, QpState.RTS)
            assert (ready.rq_psn, sending.sq_psn) == (ours, theirs)


FRAMES = json.loads(Path(__file__).with_name("soft_roce_frames.json").read_text())
"""Captured by us: a frame of every kind that soft-RoCE of Linux 6.1 sent in the matrix."""
_ETHERNET_BYTES = 14


@pytest.mark.parametrize("captured", FRAMES, ids=lambda each: str(each["name"]))
def test_a_captured_frame_is_read_and_would_be_written_the_same(captured: dict[str, str]) -> None:
    ip_packet = bytes.fromhex(captured["frame"])[_ETHERNET_BYTES:]
    descriptor, datagram = parse_packet(ip_packet)
    packet, received_icrc = RocePacket.parse(datagram)
    assert Opcode(packet.bth.opcode).name.lower() in captured["name"].replace(" ", "_")
    headers = emit_headers(descriptor, len(datagram))
    assert received_icrc == icrc(headers, datagram[:-4])
    assert packet.emit() + emit_icrc(received_icrc) == datagram
    assert emit_packet(descriptor, datagram) == ip_packet


def test_the_captured_frames_are_of_every_kind_that_it_speaks() -> None:
    """Of both IP versions, and with each sort of acknowledgement."""
    names = {each["name"] for each in FRAMES}
    by_ipv4 = {name.removesuffix("4") for name in names if name.endswith("ipv4")}
    by_ipv6 = {name.removesuffix("6") for name in names if name.endswith("ipv6")}
    assert by_ipv4 == by_ipv6
    assert {f"rc_acknowledge {sort} ipv4" for sort in ("ack", "rnr nak", "nak")} <= names
    assert len(names) == len(FRAMES) == 40
