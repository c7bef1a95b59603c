"""ATOMIC WRITE and FLUSH: what they do, who may ask for them, and that each counts once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.wire.aeth import Aeth
from emulator.wire.atomic_eth import AtomicAckEth
from emulator.wire.feth import Feth, Placement, Selectivity
from emulator.wire.opcode import Opcode
from kvlane.errors import VerbsError
from kvlane.verbs.enums import AccessFlags, MwType, QpState, SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import ALL_ACCESS, Pair, Port, Region
from tests.support.roce_script import (
    NAK_ACCESS,
    NAK_INVALID,
    NAK_SEQUENCE,
    Script,
    atomic_eth,
    reth,
)
from tests.support.roce_work import part, post, statuses, towards, work, wr_ids

WRITE, FLUSH = WrOpcode.ATOMIC_WRITE, WrOpcode.FLUSH
FLUSHABLE = ALL_ACCESS | AccessFlags.FLUSH_GLOBAL
PERMITS_ALL = int(FLUSHABLE | AccessFlags.FLUSH_PERSISTENT)
GLOBAL = Feth(Placement.GLOBAL)
WHOLE = Feth(Placement.GLOBAL, Selectivity.REGION)
VALUE = bytes(range(1, 9))


def permit(port: Port, access: int = PERMITS_ALL) -> None:
    """What the queue pair grants its peer."""
    port.engine.qps.table[port.qp].access = access


def flush(region: Region, feth: Feth = GLOBAL, length: int = 8, **fields: int) -> Any:
    return work(FLUSH, feth=feth.word, flush_length=length, **towards(region), **fields)


def bind(window: int, region: Region, access: int) -> Any:
    return work(
        WrOpcode.BIND_MW,
        mw_key=window,
        mw_new_key=5,
        mw_lkey=region.key,
        mw_addr=region.addr,
        mw_length=32,
        mw_access=int(access),
    )


def flushing_pair(options: QpOptions | None = None) -> tuple[Pair, Region]:
    pair = Pair() if options is None else Pair(options=options)
    permit(pair.b)
    return pair, pair.b.region(64, FLUSHABLE)


def flushing_script(options: QpOptions | None = None) -> tuple[Script, Region]:
    script = Script() if options is None else Script(options=options)
    permit(script.port)
    return script, script.port.region(64, FLUSHABLE)


# ATOMIC WRITE


def test_an_atomic_write_puts_eight_bytes_in_place() -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(24)
    local.data[:] = np.frombuffer(VALUE, np.uint8)
    post(pair.a, work(WRITE, [part(local)], wr_id=5, **towards(remote, 8)))
    pair.run()
    (wc,) = pair.a.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (5, WcStatus.SUCCESS, WcOpcode.ATOMIC_WRITE)
    assert bytes(remote.data) == bytes(8) + VALUE + bytes(8)
    assert pair.b.poll() == []
    assert pair.b.engine.counters()["rx_atomic_write_requests"] == 1
    assert pair.b.engine.counters()["rx_write_requests"] == 0


def test_its_bytes_may_be_gathered_or_inline() -> None:
    pair = Pair()
    local, remote = pair.a.region(32), pair.b.region(16)
    local.data[:] = np.arange(32)
    elements = [part(local, 20, 3), part(local, 5, 0), part(local, 0, 5)]
    post(pair.a, work(WRITE, elements, **towards(remote)))
    inline = [(local.host_addr + 8, 8, 0)]
    flags = SendFlags.SIGNALED | SendFlags.INLINE
    post(pair.a, work(WRITE, inline, flags, **towards(remote, 8)))
    local.data[:] = 0xEE
    local.data[:23] = np.arange(23)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 2
    assert remote.data.tolist() == [20, 21, 22, 0, 1, 2, 3, 4, *range(8, 16)]


def test_the_wire_form_is_a_reth_and_the_bytes_as_they_lie_in_memory() -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    local.data[:] = np.frombuffer(VALUE, np.uint8)
    post(script.port, work(WRITE, [part(local)], **towards(remote)))
    (packet,) = script.packets()
    assert packet.bth.opcode == Opcode.RC_ATOMIC_WRITE
    assert packet.bth.ack_request
    assert packet.extensions == (reth(remote, 8),)
    assert packet.payload == VALUE


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16])
def test_it_is_about_eight_bytes_and_no_others(length: int) -> None:
    pair = Pair()
    local, remote = pair.a.region(16), pair.b.region(16)
    post(pair.a, work(WRITE, [part(local, 0, length)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_LEN_ERR]


@pytest.mark.parametrize(
    ("offset", "announced", "payload"), [(1, 8, 8), (4, 8, 8), (0, 16, 8), (0, 8, 16), (0, 8, 4)]
)
def test_misaligned_or_another_length_is_an_invalid_request(
    offset: int, announced: int, payload: int
) -> None:
    script = Script()
    region = script.port.region(64)
    header = reth(region, announced, -region.addr % 8 + offset)
    answer = script.request(Opcode.RC_ATOMIC_WRITE, 0, header, payload=b"x" * payload)
    assert answer == [f"NAK 0 {NAK_INVALID:#04x}"]
    assert not region.data.any()
    assert script.port.state == QpState.ERR
    assert script.counter("resp_invalid_request") == 1


def test_memory_that_is_not_aligned_itself_would_be_seen_in_halves() -> None:
    script = Script()
    memory = np.zeros(64, np.uint8)
    addr = int(memory.ctypes.data)
    misplaced = addr + (-addr) % 8 + 4
    key = script.port.engine.regions.register(misplaced, 32, int(ALL_ACCESS), 1, memory, 1 << 20)
    region = script.port.region(8)
    region.addr, region.key = 1 << 20, key
    answer = script.request(Opcode.RC_ATOMIC_WRITE, 0, reth(region, 8), payload=VALUE)
    assert answer == [f"NAK 0 {NAK_INVALID:#04x}"]
    assert not memory.any()


@pytest.mark.parametrize("withheld_by", ["region", "queue pair"])
def test_it_needs_permission_to_write(withheld_by: str) -> None:
    without = ALL_ACCESS & ~AccessFlags.REMOTE_WRITE
    script = Script()
    region = script.port.region(8, without if withheld_by == "region" else ALL_ACCESS)
    if withheld_by == "queue pair":
        permit(script.port, int(without))
    answer = script.request(Opcode.RC_ATOMIC_WRITE, 0, reth(region, 8), payload=VALUE)
    assert answer == [f"NAK 0 {NAK_ACCESS:#04x}"]
    assert not region.data.any()


@pytest.mark.parametrize("offset", [8, -8, 1 << 40])
def test_it_must_lie_inside_the_region(offset: int) -> None:
    script = Script()
    region = script.port.region(8)
    answer = script.request(Opcode.RC_ATOMIC_WRITE, 0, reth(region, 8, offset), payload=VALUE)
    assert answer == [f"NAK 0 {NAK_ACCESS:#04x}"]
    assert region.guards_hold()


def test_a_repetition_is_answered_and_does_not_undo_what_came_after() -> None:
    script = Script()
    region = script.port.region(8)
    for psn, value in enumerate((VALUE, b"later on")):
        answer = script.request(Opcode.RC_ATOMIC_WRITE, psn, reth(region, 8), payload=value)
        assert answer == [f"ONLY {psn}"]
    again = script.request(Opcode.RC_ATOMIC_WRITE, 0, reth(region, 8), payload=VALUE)
    assert again == ["ONLY 0"]
    assert bytes(region.data) == b"later on"
    assert script.counter("duplicate_request") == 1


def test_a_repetition_that_is_kept_no_more_or_was_something_else_is_dropped() -> None:
    script = Script()
    region = script.port.region(8)
    for psn in range(100):
        script.request(Opcode.RC_ATOMIC_WRITE, psn, reth(region, 8), payload=VALUE)
    assert script.request(Opcode.RC_ATOMIC_WRITE, 0, reth(region, 8), payload=VALUE) == []
    assert script.request(Opcode.RC_FETCH_ADD, 99, atomic_eth(region, 1)) == []
    assert script.request(Opcode.RC_ATOMIC_WRITE, 99, reth(region, 8), payload=VALUE) == ["ONLY 99"]
    assert bytes(region.data) == VALUE


def test_it_does_not_stand_in_the_midst_of_a_message() -> None:
    script = Script(256)
    region = script.port.region(1024)
    first = Opcode.RC_RDMA_WRITE_FIRST
    script.request(first, 0, reth(region, 512), payload=bytes(256))
    answer = script.request(Opcode.RC_ATOMIC_WRITE, 1, reth(region, 8), payload=VALUE)
    assert answer == [f"NAK 1 {NAK_INVALID:#04x}"]


def test_it_comes_after_what_was_sent_before() -> None:
    """The use of it: data, and a mark behind it that says that the data is there."""
    pair = Pair(256)
    local, remote = pair.a.region(3000), pair.b.region(3008)
    local.data[:] = 7
    dropped = iter([True])
    pair.to_b = lambda frames: frames[1:] if next(dropped, False) else frames
    post(
        pair.a,
        work(WrOpcode.RDMA_WRITE, [part(local)], wr_id=1, **towards(remote)),
        work(WRITE, [part(local, 0, 8)], wr_id=2, **towards(remote, 3000)),
    )
    seen = []

    def look(frames: list[Any]) -> list[Any]:
        marked = bool(remote.data[3000:].any())
        seen.append((marked, bool(remote.data[:3000].all())))
        return frames

    pair.to_a = look
    pair.run()
    assert wr_ids(pair.a.poll()) == [1, 2]
    assert (False, False) in seen
    assert seen[-1] == (True, True)
    assert (True, False) not in seen


# FLUSH


@pytest.mark.parametrize("feth", [GLOBAL, WHOLE])
def test_a_flush_is_acknowledged(feth: Feth) -> None:
    pair, remote = flushing_pair()
    post(pair.a, flush(remote, feth, wr_id=6))
    pair.run()
    (wc,) = pair.a.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (6, WcStatus.SUCCESS, WcOpcode.FLUSH)
    assert pair.b.engine.counters()["rx_flush_requests"] == 1
    assert pair.b.poll() == []


def test_a_flush_is_done_after_the_writes_before_it() -> None:
    pair, _ = flushing_pair()
    local, remote = pair.a.region(3000), pair.b.region(3000, FLUSHABLE)
    local.data[:] = 9
    lost = iter([True])
    pair.to_b = lambda frames: frames[1:] if next(lost, False) else frames
    flags = 0
    post(
        pair.a,
        work(WrOpcode.RDMA_WRITE, [part(local)], flags, **towards(remote)),
        flush(remote, length=3000, wr_id=2),
    )
    while not (done := pair.a.poll()):
        pair.step()
        if pair.now > 10**10:
            raise AssertionError("no completion")
        pair.now = max(pair.now, min(pair.a.engine.next_deadline(), pair.now + 10**7))
    assert wr_ids(done) == [2]
    assert remote.data.all()


def test_its_wire_form_has_the_feth_before_the_reth() -> None:
    script = Script()
    remote = script.pair.a.region(64)
    post(script.port, flush(remote, length=40))
    (packet,) = script.packets()
    assert packet.bth.opcode == Opcode.RC_FLUSH
    assert packet.bth.ack_request
    assert packet.extensions == (GLOBAL, reth(remote, 40))
    assert packet.payload == b""


@pytest.mark.parametrize(
    ("feth", "length", "syndrome"),
    [
        (Feth(0), 8, NAK_INVALID),
        (Feth(4), 8, NAK_INVALID),
        (Feth(9), 8, NAK_INVALID),
        (Feth(1, 2), 8, NAK_INVALID),
        (Feth(1, 3), 8, NAK_INVALID),
        (GLOBAL, 65, NAK_ACCESS),
        (Feth(Placement.PERSISTENT), 8, NAK_ACCESS),
        (Feth(Placement.GLOBAL | Placement.PERSISTENT, Selectivity.REGION), 8, NAK_ACCESS),
    ],
)
def test_what_is_refused(feth: Feth, length: int, syndrome: int) -> None:
    script, region = flushing_script()
    answer = script.request(Opcode.RC_FLUSH, 0, feth, reth(region, length))
    assert answer == [f"NAK 0 {syndrome:#04x}"]
    assert script.port.state == QpState.ERR


def test_a_flush_of_a_region_minds_neither_address_nor_length() -> None:
    script, region = flushing_script()
    header = reth(region, 1 << 31, offset=1 << 40)
    assert script.request(Opcode.RC_FLUSH, 0, WHOLE, header) == ["ONLY 0"]


@pytest.mark.parametrize("feth", [GLOBAL, WHOLE])
@pytest.mark.parametrize("withheld_by", ["key", "region", "queue pair", "domain"])
def test_it_needs_permission(feth: Feth, withheld_by: str) -> None:
    script = Script()
    port = script.port
    pd = 2 if withheld_by == "domain" else 1
    access = ALL_ACCESS if withheld_by == "region" else FLUSHABLE
    region = Region(port.engine, 64, access, pd)
    permit(port, int(ALL_ACCESS) if withheld_by == "queue pair" else PERMITS_ALL)
    key = region.key ^ 1 if withheld_by == "key" else region.key
    answer = script.request(Opcode.RC_FLUSH, 0, feth, reth(region, 8, rkey=key))
    assert answer == [f"NAK 0 {NAK_ACCESS:#04x}"]


def test_even_nothing_is_flushed_by_a_right_key_only() -> None:
    """Other than READ and WRITE of no bytes, which look at no key."""
    script, region = flushing_script()
    assert script.request(Opcode.RC_FLUSH, 0, GLOBAL, reth(region, 0)) == ["ONLY 0"]
    answer = script.request(Opcode.RC_FLUSH, 1, GLOBAL, reth(region, 0, rkey=region.key ^ 1))
    assert answer == [f"NAK 1 {NAK_ACCESS:#04x}"]


def test_no_region_is_persistent() -> None:
    pair = Pair()
    with pytest.raises(VerbsError, match="outlasts"):
        pair.a.region(8, FLUSHABLE | AccessFlags.FLUSH_PERSISTENT)


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_repeated_flush_is_acknowledged_again(repeats: int) -> None:
    script, region = flushing_script()
    assert script.request(Opcode.RC_FLUSH, 0, GLOBAL, reth(region, 8)) == ["ONLY 0"]
    for _ in range(repeats):
        assert script.request(Opcode.RC_FLUSH, 0, GLOBAL, reth(region, 8)) == ["ONLY 0"]
    assert script.counter("duplicate_request") == repeats
    assert script.counter("rx_flush_requests") == 1


@pytest.mark.parametrize("length", [-1, (1 << 31) + 1])
def test_a_flush_of_no_sensible_length_is_a_local_error(length: int) -> None:
    pair, remote = flushing_pair()
    post(pair.a, flush(remote, length=length))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_LEN_ERR]


def test_a_flush_has_no_elements() -> None:
    pair, remote = flushing_pair()
    local = pair.a.region(8)
    post(pair.a, work(FLUSH, [part(local)], feth=GLOBAL.word, **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_LEN_ERR]


@pytest.mark.parametrize("opens", [True, False])
def test_a_window_opens_for_a_flush_what_its_bind_names(opens: bool) -> None:
    pair, _ = flushing_pair()
    region = pair.b.region(64, FLUSHABLE | AccessFlags.MW_BIND)
    window = pair.b.engine.regions.alloc_window(1, MwType.TYPE_2)
    access = AccessFlags.REMOTE_WRITE | (AccessFlags.FLUSH_GLOBAL if opens else 0)
    post(pair.b, bind(window, region, access))
    pair.run()
    region.key = pair.b.engine.regions.current_key(window)
    post(pair.a, flush(region, length=32))
    pair.run()
    wanted = WcStatus.SUCCESS if opens else WcStatus.REM_ACCESS_ERR
    assert statuses(pair.a.poll()) == [wanted]


@pytest.mark.parametrize("region_permits", [True, False])
def test_a_bind_opens_no_more_than_its_region(region_permits: bool) -> None:
    pair = Pair()
    access = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
    region = pair.a.region(64, access | (AccessFlags.FLUSH_GLOBAL if region_permits else 0))
    window = pair.a.engine.regions.alloc_window(1, MwType.TYPE_2)
    post(pair.a, bind(window, region, AccessFlags.FLUSH_GLOBAL))
    pair.run()
    wanted = WcStatus.SUCCESS if region_permits else WcStatus.MW_BIND_ERR
    assert statuses(pair.a.poll()) == [wanted]


# Both


def both(pair: Pair, remote: Region) -> list[Any]:
    local = pair.a.region(8)
    local.data[:] = 1
    return [work(WRITE, [part(local)], wr_id=1, **towards(remote)), flush(remote, wr_id=2)]


def test_no_more_than_agreed_are_under_way() -> None:
    pair, remote = flushing_pair(QpOptions(max_rd_atomic=3, ack_timeout_code=8))
    for _ in range(4):
        post(pair.a, *both(pair, remote))
    assert len(pair.a.transmit(0)) == 3
    assert pair.a.transmit(0) == []
    pair.now = 10**9
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 8


def test_more_than_the_responder_agreed_to_are_refused() -> None:
    pair, remote = flushing_pair(QpOptions(max_rd_atomic=4, ack_timeout_code=8))
    pair.b.engine.qps.table[pair.b.qp].max_dest_rd_atomic = 3
    post(pair.a, *both(pair, remote), *both(pair, remote))
    pair.run()
    wanted = [*[WcStatus.SUCCESS] * 3, WcStatus.REM_INV_REQ_ERR]
    assert statuses(pair.a.poll()) == wanted


def test_none_at_all_is_a_local_error() -> None:
    for which in (0, 1):
        pair, remote = flushing_pair()
        pair.a.engine.qps.table[pair.a.qp].max_rd_atomic = 0
        post(pair.a, both(pair, remote)[which])
        pair.run()
        assert statuses(pair.a.poll()) == [WcStatus.LOC_QP_OP_ERR]


def test_a_fence_waits_for_both() -> None:
    for which in (0, 1):
        pair, remote = flushing_pair()
        local = pair.a.region(8)
        fenced = SendFlags.SIGNALED | SendFlags.FENCE
        post(
            pair.a,
            both(pair, remote)[which],
            work(WrOpcode.RDMA_WRITE, [part(local)], fenced, **towards(remote)),
        )
        assert len(pair.a.transmit(0)) == 1
        pair.now = 10**9
        pair.run()
        assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 2


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_answer_is_asked_for_again(lost: int) -> None:
    pair, remote = flushing_pair()
    count = iter(range(1000))
    pair.to_a = lambda frames: [f for f in frames if next(count) != lost]
    post(pair.a, *both(pair, remote), *both(pair, remote))
    pair.run()
    done = pair.a.poll()
    assert wr_ids(done) == [1, 2, 1, 2]
    assert set(statuses(done)) == {WcStatus.SUCCESS}
    assert pair.b.engine.counters()["rx_atomic_write_requests"] == 2
    assert pair.b.engine.counters()["rx_flush_requests"] == 2


def posted(script: Script, which: int) -> None:
    local, remote = script.port.region(8), script.pair.a.region(8)
    works = [work(WRITE, [part(local)], **towards(remote)), flush(remote)]
    post(script.port, works[which])
    assert len(script.packets()) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_plain_acknowledgement_is_not_enough(which: int) -> None:
    script = Script()
    posted(script, which)
    script.acknowledge(0)
    assert script.port.poll() == []
    assert script.requests() == [["ATOMIC_WRITE 0", "FLUSH 0"][which]]
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_ONLY, 0, Aeth.ack(1))
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["value", "data"])
def test_an_answer_of_the_wrong_kind_ends_the_connection(which: int, kind: str) -> None:
    script = Script()
    posted(script, which)
    if kind == "value":
        script.respond(Opcode.RC_ATOMIC_ACKNOWLEDGE, 0, Aeth.ack(1), AtomicAckEth(1))
    else:
        script.respond(Opcode.RC_RDMA_READ_RESPONSE_ONLY, 0, Aeth.ack(1), payload=bytes(8))
    assert statuses(script.port.poll()) == [WcStatus.BAD_RESP_ERR]


def test_data_is_no_answer_to_an_atomic() -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    post(script.port, work(WrOpcode.ATOMIC_FETCH_AND_ADD, [part(local)], **towards(remote)))
    assert script.requests() == ["FETCH_ADD 0"]
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_ONLY, 0, Aeth.ack(1))
    assert statuses(script.port.poll()) == [WcStatus.BAD_RESP_ERR]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("syndrome", "status"),
    [(NAK_INVALID, WcStatus.REM_INV_REQ_ERR), (NAK_ACCESS, WcStatus.REM_ACCESS_ERR)],
)
def test_a_refusal_is_told(which: int, syndrome: int, status: WcStatus) -> None:
    script = Script()
    posted(script, which)
    script.acknowledge(0, syndrome)
    assert statuses(script.port.poll()) == [status]


def test_what_comes_too_early_waits_for_what_is_missing() -> None:
    script, region = flushing_script()
    early = script.request(Opcode.RC_FLUSH, 1, GLOBAL, reth(region, 8))
    assert early == [f"NAK 0 {NAK_SEQUENCE:#04x}"]
    assert script.request(Opcode.RC_ATOMIC_WRITE, 0, reth(region, 8), payload=VALUE) == ["ONLY 0"]
    assert script.request(Opcode.RC_FLUSH, 1, GLOBAL, reth(region, 8)) == ["ONLY 1"]
