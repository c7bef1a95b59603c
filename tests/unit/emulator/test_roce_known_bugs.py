"""Twenty-five bugs that other RoCE implementations have had, each once against this one.

One end alone is driven with scripted packets. The name of a test begins with the bug's
number; its docstring says whose bug it was. PSNs count from the first of a direction.
"""

from __future__ import annotations

import numpy as np
import pytest

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.roce.engine import EngineLimits
from emulator.wire.aeth import RNR_TIMER_NS, Aeth
from emulator.wire.icrc import icrc
from emulator.wire.imm import ImmDt
from emulator.wire.ip import emit_headers
from emulator.wire.opcode import Opcode
from emulator.wire.reth import Reth
from kvlane.verbs.enums import QpState, QpType, SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import Pair, ipv6_gid, mapped_gid, reseal
from tests.support.roce_script import (
    ACK,
    NAK_ACCESS,
    NAK_INVALID,
    NAK_SEQUENCE,
    RNR,
    Script,
    atomic_eth,
    reth,
)
from tests.support.roce_work import (
    part,
    pattern,
    post,
    post_receive,
    receive,
    statuses,
    to_port,
    towards,
    work,
    wr_ids,
)

MTU = 256
FIRST, MIDDLE, LAST, ONLY = (
    Opcode.RC_RDMA_WRITE_FIRST,
    Opcode.RC_RDMA_WRITE_MIDDLE,
    Opcode.RC_RDMA_WRITE_LAST,
    Opcode.RC_RDMA_WRITE_ONLY,
)
READ = Opcode.RC_RDMA_READ_REQUEST


def write_of(script: Script, nbytes: int, count: int = 1) -> None:
    """Let the port post WRITEs."""
    local, remote = script.port.region(nbytes), script.pair.a.region(nbytes)
    for wr_id in range(count):
        post(
            script.port,
            work(WrOpcode.RDMA_WRITE, [part(local)], wr_id=wr_id, **towards(remote)),
        )


@pytest.mark.parametrize("size", [1, 2, 3, 253])
def test_bug_01_the_icrc_covers_the_pad(size: int) -> None:
    """Soft-RoCE left it out, and spoke with no HCA (linux 2030abddec68)."""
    script = Script()
    write_of(script, size)
    ((frame, descriptor),) = script.port.transmit(0)
    headers = emit_headers(descriptor, len(frame))
    assert frame[-4:] == icrc(headers, frame[:-4]).to_bytes(4, "little")
    region = script.port.region(256)
    good, to_port_ = script.frame(
        ONLY, script.pair.a.first_psn, reth(region, size), payload=b"x" * size
    )
    padded = bytearray(good)
    padded[-5] ^= 1
    script.port.receive((bytes(padded), to_port_), 0)
    assert script.answers() == []
    assert script.counter("rx_icrc_encapsulated") == 1


@pytest.mark.parametrize("gid", [mapped_gid, ipv6_gid])
def test_bug_02_the_icrc_covers_the_headers_that_are_sent(gid: object) -> None:
    """The UDP tunnel filled them in after the sum was taken (rxe-dev 30)."""
    pair = Pair(MTU, gid=gid)  # type: ignore[arg-type]
    local, remote = pair.a.region(300), pair.b.region(300)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    for frame, descriptor in pair.a.transmit(0):
        headers = emit_headers(descriptor, len(frame))
        assert frame[-4:] == icrc(headers, frame[:-4]).to_bytes(4, "little")
        descriptor.src_port += 1
        pair.b.receive((frame, descriptor), 0)
    assert pair.b.engine.counters()["rx_icrc_encapsulated"] == 2


@pytest.mark.parametrize("first_psn", [0xFFFFFF, 0xFFFFFA, 0])
def test_bug_03_the_window_is_counted_modulo_2_to_24(first_psn: int) -> None:
    """Compared as 32-bit numbers it stood open, or shut, at the wrap (linux bb3ab2979fd6)."""
    script = Script(first_psn=first_psn)
    script.port.engine.qps.table[script.port.qp].window = 10
    write_of(script, 100 * MTU)
    assert len(script.requests()) == 10
    assert script.requests() == []
    script.acknowledge(3)
    assert script.requests() == [f"RDMA_WRITE_MIDDLE {psn}" for psn in range(10, 14)]


def test_bug_04_a_repeated_read_disturbs_no_write_and_a_write_is_acked_with_the_last_psn() -> None:
    """It reset the responder's place in a message, and its PSN was acknowledged instead
    (linux 4e4c53df5677)."""
    script = Script()
    region = script.port.region(4 * MTU)
    read = reth(region, 2 * MTU)
    assert script.request(READ, 0, read) == ["FIRST 0", "LAST 1"]
    script.request(FIRST, 2, reth(region, 3 * MTU), payload=bytes(MTU), ack=False)
    assert script.request(READ, 0, read) == ["FIRST 0", "LAST 1"]
    script.request(MIDDLE, 3, payload=bytes(MTU), ack=False)
    assert script.request(READ, 1, reth(region, MTU, offset=MTU)) == ["ONLY 1"]
    assert script.request(LAST, 4, payload=bytes(MTU)) == ["ACK 4"]
    assert script.request(READ, 5, read) == ["FIRST 5", "LAST 6"]
    assert script.request(LAST, 4, payload=bytes(MTU)) == ["ACK 6"]
    assert script.port.state == QpState.RTS


def test_bug_05_a_read_is_resumed_where_it_broke_off() -> None:
    """An ACK that skips the READ is no answer to it, what is asked for again is only the rest,
    and the answer may begin anew with FIRST (linux 030e46e495af)."""
    script = Script()
    local, remote = script.port.region(3 * MTU), script.pair.a.region(4 * MTU)
    post(
        script.port,
        work(WrOpcode.RDMA_READ, [part(local)], wr_id=1, **towards(remote)),
        work(WrOpcode.RDMA_WRITE, [part(local, 0, 8)], wr_id=2, **towards(remote)),
    )
    assert script.requests() == ["RDMA_READ_REQUEST 0", "RDMA_WRITE_ONLY 3"]
    data = pattern(3 * MTU).tobytes()
    respond = script.respond
    respond(Opcode.RC_RDMA_READ_RESPONSE_FIRST, 0, Aeth(ACK, 1), payload=data[:MTU])
    script.acknowledge(3)
    assert script.port.poll() == []
    again, _ = script.packets()
    assert (again.bth.psn - script.port.first_psn) & 0xFFFFFF == 1
    assert again.extension(Reth) == reth(remote, 2 * MTU, offset=MTU)
    respond(Opcode.RC_RDMA_READ_RESPONSE_FIRST, 1, Aeth(ACK, 1), payload=data[MTU : 2 * MTU])
    respond(Opcode.RC_RDMA_READ_RESPONSE_LAST, 2, Aeth(ACK, 1), payload=data[2 * MTU :])
    script.acknowledge(3)
    assert wr_ids(script.port.poll()) == [1, 2]
    assert local.data.tobytes() == data


@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_bug_06_a_nak_in_the_middle_of_a_read_response_ends_it(arrived: int) -> None:
    """It was ignored, and the request sent again for ever (linux 5ac814e02ece)."""
    script = Script()
    local, remote = script.port.region(3 * MTU), script.pair.a.region(3 * MTU)
    post(script.port, work(WrOpcode.RDMA_READ, [part(local)], wr_id=4, **towards(remote)))
    script.packets()
    for psn in range(arrived):
        opcode = Opcode.RC_RDMA_READ_RESPONSE_MIDDLE if psn else Opcode.RC_RDMA_READ_RESPONSE_FIRST
        headers = () if psn else (Aeth(ACK, 1),)
        script.respond(opcode, psn, *headers, payload=bytes(MTU))
    script.acknowledge(arrived, NAK_ACCESS)
    assert [(int(wc.wr_id), int(wc.status)) for wc in script.port.poll()] == [
        (4, WcStatus.REM_ACCESS_ERR)
    ]
    script.now += 10**12
    assert script.requests() == []


def test_bug_07_nothing_cuts_the_wait_after_an_rnr_nak_short() -> None:
    """The retransmission timer did, through a flag that both used (linux 445fd4f4fb76)."""
    script = Script(options=QpOptions(ack_timeout_code=1, rnr_retry_count=7))
    post(script.port, work(WrOpcode.SEND, [part(script.port.region(8))]))
    assert script.requests() == ["SEND_ONLY 0"]
    script.acknowledge(0, RNR | 20)
    begun = script.now
    while script.now < begun + RNR_TIMER_NS[20] - 100_000:
        script.now += 100_000
        assert script.requests() == []
        script.acknowledge(0, RNR | 1)
        script.acknowledge(0xFFFFFF)
    script.now = begun + RNR_TIMER_NS[20]
    assert script.requests() == ["SEND_ONLY 0"]
    assert script.counter("local_ack_timeout_err") == 0


def test_bug_08_a_slow_acknowledgement_of_something_is_no_timeout() -> None:
    """Timeouts struck though acknowledgements kept coming (rxe patches of May 2022)."""
    timeout_ns = 4096 << 8
    script = Script(options=QpOptions(ack_timeout_code=8))
    write_of(script, 8, count=20)
    assert len(script.requests()) == 20
    for psn in range(20):
        script.now += timeout_ns - 1000
        script.acknowledge(psn)
        assert script.requests() == []
    assert script.counter("local_ack_timeout_err") == 0
    assert len(script.port.poll()) == 20
    assert script.port.engine.next_deadline() >= 1 << 61


def test_bug_09_a_repeated_read_looks_its_key_up_again() -> None:
    """The replay went through a region that had been forgotten (rxe patch of April 2022)."""
    script = Script()
    region = script.port.region(MTU)
    header = reth(region, MTU)
    assert script.request(READ, 0, header) == ["ONLY 0"]
    assert script.request(READ, 0, header) == ["ONLY 0"]
    script.port.engine.regions.deregister(region.key)
    assert script.request(READ, 0, header) == [f"NAK 0 {NAK_ACCESS:#04x}"]
    # The same entry of the table, under another key.
    assert script.port.region(MTU).key >> 8 == region.key >> 8
    assert script.request(READ, 0, header) == [f"NAK 0 {NAK_ACCESS:#04x}"]


def test_bug_10_transfers_of_nothing_look_at_no_key() -> None:
    """They had no region, and one was used (linux 3282a549cf9b)."""
    script = Script()
    nothing = Reth(0, 0, 0)
    assert script.request(ONLY, 0, nothing) == ["ACK 0"]
    assert script.request(READ, 1, nothing) == ["ONLY 1"]
    assert script.request(READ, 1, nothing) == ["ONLY 1"]
    post_receive(script.port, receive(wr_id=3))
    opcode = Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE
    assert script.request(opcode, 2, nothing, ImmDt(5)) == ["ACK 2"]
    assert [(int(wc.wr_id), int(wc.byte_len)) for wc in script.port.poll()] == [(3, 0)]


@pytest.mark.parametrize(
    ("opcode", "size", "fits"),
    [
        (Opcode.RC_SEND_ONLY, 0, True),
        (Opcode.RC_SEND_ONLY, MTU, True),
        (Opcode.RC_SEND_ONLY, MTU + 1, False),
        (Opcode.RC_SEND_FIRST, MTU, True),
        (Opcode.RC_SEND_FIRST, MTU - 1, False),
        (Opcode.RC_SEND_FIRST, MTU + 4, False),
        (Opcode.RC_SEND_FIRST, 0, False),
    ],
)
def test_bug_11_each_place_in_a_message_has_its_length(
    opcode: Opcode, size: int, fits: bool
) -> None:
    """Nobody checked; then the check forbade datagrams (linux 689c5421bfe0)."""
    script = Script()
    post_receive(script.port, receive([part(script.port.region(1024))]))
    answers = script.request(opcode, 0, payload=bytes(size))
    assert answers == (["ACK 0"] if fits else [f"NAK 0 {NAK_INVALID:#04x}"])


@pytest.mark.parametrize(
    ("opcode", "size", "fits"),
    [
        (Opcode.RC_SEND_MIDDLE, MTU, True),
        (Opcode.RC_SEND_MIDDLE, MTU - 4, False),
        (Opcode.RC_SEND_LAST, 1, True),
        (Opcode.RC_SEND_LAST, MTU, True),
        (Opcode.RC_SEND_LAST, 0, False),
        (Opcode.RC_SEND_LAST, MTU + 1, False),
    ],
)
def test_bug_11_also_behind_the_first(opcode: Opcode, size: int, fits: bool) -> None:
    script = Script()
    post_receive(script.port, receive([part(script.port.region(1024))]))
    script.request(Opcode.RC_SEND_FIRST, 0, payload=bytes(MTU))
    answers = script.request(opcode, 1, payload=bytes(size))
    assert answers == (["ACK 1"] if fits else [f"NAK 1 {NAK_INVALID:#04x}"])


def test_bug_11_and_datagrams_go_on() -> None:
    pair = Pair(kind=QpType.UD)
    source, target = pair.a.region(4096), pair.b.region(4200)
    for size in (0, 1, 257, 4096):
        post_receive(pair.b, receive([part(target)]))
        post(pair.a, work(WrOpcode.SEND, [part(source, 0, size)], **to_port(pair.b)))
        pair.run()
        assert [int(wc.byte_len) for wc in pair.b.poll()] == [40 + size]


def test_bug_12_a_datagram_that_is_too_long_harms_nothing() -> None:
    """It put the queue pair in error (CVE-2024-40992)."""
    pair = Pair(kind=QpType.UD)
    source, target = pair.a.region(100), pair.b.region(139)
    post_receive(pair.b, receive([part(target)], wr_id=1))
    for size in (100, 99):
        post(pair.a, work(WrOpcode.SEND, [part(source, 0, size)], **to_port(pair.b)))
    pair.run()
    assert pair.b.state == QpState.RTS
    (wc,) = pair.b.poll()
    assert (wc.wr_id, wc.status, wc.byte_len) == (1, WcStatus.SUCCESS, 139)


@pytest.mark.parametrize("pad", [1, 2, 3])
def test_bug_13_a_forged_pad_gives_no_negative_length(pad: int) -> None:
    """The payload's length wrapped round to 4 GiB (linux 7244491dab34)."""
    script = Script()
    region = script.port.region(64)
    post_receive(script.port, receive([part(region)]))
    frame, descriptor = script.frame(Opcode.RC_SEND_ONLY, script.pair.a.first_psn)
    forged = bytearray(frame)
    forged[1] |= pad << 4
    script.port.receive(reseal(forged, descriptor), 0)
    assert script.answers() == []
    assert script.counter("rx_bad_header") == 1
    assert region.guards_hold()


HEADERS = {
    Opcode.RC_SEND_ONLY: 0,
    Opcode.RC_SEND_ONLY_WITH_IMMEDIATE: 4,
    Opcode.RC_RDMA_WRITE_ONLY: 16,
    Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE: 20,
    Opcode.RC_RDMA_READ_REQUEST: 16,
    Opcode.RC_RDMA_READ_RESPONSE_ONLY: 4,
    Opcode.RC_ACKNOWLEDGE: 4,
    Opcode.RC_ATOMIC_ACKNOWLEDGE: 12,
    Opcode.RC_COMPARE_SWAP: 28,
}


@pytest.mark.parametrize("opcode", HEADERS)
def test_bug_14_a_runt_is_measured_from_its_own_first_byte(opcode: Opcode) -> None:
    """From the UDP header it looked 8 bytes longer (linux 9a3763e87379)."""
    whole = 12 + HEADERS[opcode] + 4
    for missing in range(4, whole + 1, 4):
        script = Script()
        frame, descriptor = script.frame(Opcode.RC_SEND_ONLY, script.pair.a.first_psn)
        runt = (bytearray(frame[:12]) + bytes(64))[: whole - missing]
        if len(runt) < 16:
            script.port.receive((bytes(runt), descriptor), 0)
            assert script.counter("rx_runt") == 1
            continue
        runt[0] = opcode
        script.port.receive(reseal(runt, descriptor), 0)
        assert script.counter("rx_bad_header") == 1
        assert script.answers() == []


def test_bug_15_inline_data_is_what_was_posted() -> None:
    """Soft-RoCE copied it from a wrong address (Linux 6.10-rc)."""
    script = Script()
    remote = script.pair.a.region(64)
    data = np.arange(1, 65, dtype=np.uint8)
    element = (int(data.ctypes.data), 64, 0)
    flags = SendFlags.SIGNALED | SendFlags.INLINE
    post(script.port, work(WrOpcode.RDMA_WRITE, [element], flags, **towards(remote)))
    data[:] = 0
    (packet,) = script.packets()
    assert packet.payload == bytes(range(1, 65))


def test_bug_16_an_error_says_whose_it_is() -> None:
    """It came with another request's number and queue pair (SLES bsc 1111666).

    When memory goes meanwhile: ``test_roce_memory_gone.py``.
    """
    script = Script(options=QpOptions(retry_count=0, ack_timeout_code=8))
    write_of(script, 8, count=3)
    script.requests()
    script.acknowledge(0)
    script.now += 10**9
    assert script.requests() == []
    done = script.port.poll()
    assert wr_ids(done) == [0, 1, 2]
    assert statuses(done) == [WcStatus.SUCCESS, WcStatus.RETRY_EXC_ERR, WcStatus.WR_FLUSH_ERR]
    assert {int(wc.qp_num) for wc in done} == {script.port.number}


def test_bug_17_a_repeated_atomic_is_not_executed_again() -> None:
    """The replay went through a copy of the packet that could be gone (rxe, June 2022)."""
    script = Script()
    region = script.port.region(8)
    region.data[0] = 5
    swap = atomic_eth(region, swap_or_add=9, compare=5)
    assert script.request(Opcode.RC_COMPARE_SWAP, 0, swap) == ["ATOMIC 0 5"]
    region.data[0] = 5
    assert script.request(Opcode.RC_COMPARE_SWAP, 0, swap) == ["ATOMIC 0 5"]
    assert region.data[0] == 5


def test_bug_18_a_second_connection_knows_nothing_of_the_first() -> None:
    """A peer that kept its PSN had everything dropped as out of sequence (slaclab rogue 1268)."""
    script = Script()
    region = script.port.region(64)
    assert script.request(ONLY, 5, reth(region, 8), payload=bytes(8)) == [
        f"NAK 0 {NAK_SEQUENCE:#04x}"
    ]
    qps, qp = script.port.engine.qps, script.port.qp
    qps.modify(qp, QpAttributes(qp_state=QpState.RESET), QpMask.STATE)
    attributes = QpAttributes(qp_state=QpState.INIT, qp_access_flags=0xF)
    mask = QpMask.STATE | QpMask.PKEY_INDEX | QpMask.PORT | QpMask.ACCESS_FLAGS
    qps.modify(qp, attributes, mask)
    script.pair.a.first_psn ^= 0x800001
    script.port.connect(script.pair.a, MTU)
    assert script.request(ONLY, 0, reth(region, 8), payload=b"\x07" * 8) == ["ACK 0"]
    assert (region.data[:8] == 7).all()
    assert script.request(ONLY, 2, reth(region, 8), payload=bytes(8)) == [
        f"NAK 1 {NAK_SEQUENCE:#04x}"
    ]


def test_bug_19_a_storm_of_rnr_naks_stalls_nobody() -> None:
    """With 0.01 ms and rnr_retry 7 a sender came to a standstill (slaclab Simple-10GbE 15)."""
    script = Script(options=QpOptions(rnr_retry_count=7, ack_timeout_code=8))
    post(script.port, work(WrOpcode.SEND, [part(script.port.region(8))]))
    for _ in range(1000):
        assert script.requests() == ["SEND_ONLY 0"]
        for _ in range(3):
            script.acknowledge(0, RNR | 1)
        assert script.requests() == []
        script.now += RNR_TIMER_NS[1]
    assert script.requests() == ["SEND_ONLY 0"]
    script.acknowledge(0)
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]
    assert script.counter("local_ack_timeout_err") == 0


@pytest.mark.parametrize("migreq", [False, True])
def test_bug_20_migreq_is_sent_set_and_taken_either_way(migreq: bool) -> None:
    """Soft and hard RoCE differed, and one refused the other (librxe-dev 6)."""
    script = Script()
    region = script.port.region(8)
    header = reth(region, 8)
    assert script.request(ONLY, 0, header, payload=bytes(8), migreq=migreq) == ["ACK 0"]
    script.request(ONLY, 5, header, payload=bytes(8), migreq=migreq)
    write_of(script, 8)
    assert all(packet.bth.migreq for packet in script.packets())


def test_bug_21_connections_that_come_and_go_leave_nothing_behind() -> None:
    """A connection manager stopped answering after some thousand (librxe-dev 14).

    What one connection takes of the engine, queue pair, queues and regions, is given back;
    ``test_cm_machine`` has a test of this name for what the connection manager keeps.
    """
    script = Script()
    engine = script.port.engine
    for _ in range(2 * EngineLimits().max_qps + 10):
        cq, srq = engine.cqs.create(4), engine.srqs.create(1, 4)
        region = script.port.region(8)
        qp = script.port.new_qp(srq)
        kept, script.port.qp = script.port.qp, qp
        script.port.connect(script.pair.a, MTU)
        script.port.qp = kept
        engine.qps.destroy(qp)
        engine.srqs.destroy(srq)
        engine.cqs.destroy(cq)
        engine.regions.deregister(region.key)
    assert int(engine.qps.table.in_use.sum()) == 1
    assert len(engine.qps._memory) == 1
    assert not engine.regions.table.key.any()
    assert not engine.srqs.table.in_use.any()
    assert script.request(Opcode.RC_RDMA_WRITE_ONLY, 0, Reth(0, 0, 0)) == ["ACK 0"]


def test_bug_22_a_peer_that_hears_nothing_costs_a_bounded_number_of_packets() -> None:
    """Lost packets locked a processor up (rxe-dev 28)."""
    script = Script(options=QpOptions(retry_count=3, ack_timeout_code=8))
    write_of(script, 100 * MTU)
    window = len(script.requests())
    sent = window
    rounds = 0
    while (deadline := script.port.engine.next_deadline()) < 1 << 61:
        assert deadline > script.now, "there is nothing to do before the timer runs out"
        script.now = deadline
        sent += len(script.requests())
        rounds += 1
        assert rounds < 100
    assert sent == 4 * window
    assert statuses(script.port.poll()) == [WcStatus.RETRY_EXC_ERR]


def test_bug_23_a_peer_that_comes_back_too_early_is_told_to_wait_again() -> None:
    """An HCA's timer ran 500 times too fast (Oracle 40429d5d3e84)."""
    script = Script()
    region = script.port.region(8)
    code = script.port.options.min_rnr_timer_code
    for _ in range(500):
        assert script.request(Opcode.RC_SEND_ONLY, 0, payload=b"x") == [f"NAK 0 {RNR | code:#04x}"]
    post_receive(script.port, receive([part(region)]))
    assert script.request(Opcode.RC_SEND_ONLY, 0, payload=b"x") == ["ACK 0"]
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


def test_bug_24_every_rnr_code_waits_as_long_as_the_table_says() -> None:
    """Code 25 is 61.44 ms; soft-RoCE waits 61.41."""
    hundredths = [65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192]
    hundredths += [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288]
    hundredths += [16384, 24576, 32768, 49152]
    for code, wait in enumerate(hundredths):
        script = Script()
        post(script.port, work(WrOpcode.SEND, [part(script.port.region(8))]))
        script.requests()
        script.acknowledge(0, RNR | code)
        assert script.port.engine.next_deadline() == wait * 10_000, code
        script.now = wait * 10_000 - 1
        assert script.requests() == []
        script.now += 1
        assert script.requests() == ["SEND_ONLY 0"]


def test_bug_25_a_write_with_immediate_takes_a_receive() -> None:
    """Who posts none is surprised by RNR NAKs; nothing is written or lost meanwhile."""
    script = Script()
    region = script.port.region(8)
    opcode = Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE
    headers = (reth(region, 8), ImmDt(0x12345678))
    code = script.port.options.min_rnr_timer_code
    assert script.request(opcode, 0, *headers, payload=b"\x07" * 8) == [f"NAK 0 {RNR | code:#04x}"]
    assert not region.data.any()
    post_receive(script.port, receive(wr_id=1), receive(wr_id=2))
    assert script.request(opcode, 0, *headers, payload=b"\x07" * 8) == ["ACK 0"]
    assert script.request(opcode, 0, *headers, payload=b"\x09" * 8) == ["ACK 0"]
    (wc,) = script.port.poll()
    assert (wc.wr_id, wc.opcode, wc.imm) == (1, WcOpcode.RECV_RDMA_WITH_IMM, 0x12345678)
    assert (region.data == 7).all()
