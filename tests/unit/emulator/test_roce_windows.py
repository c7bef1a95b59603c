"""Memory windows: what a bind opens, to whom, and that closing closes."""

from __future__ import annotations

import pytest

from emulator.wire.aeth import Aeth
from emulator.wire.imm import Ieth
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import (
    AccessFlags,
    MwType,
    QpState,
    SendFlags,
    WcFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from tests.support.roce_pair import Pair, Port, Region
from tests.support.roce_script import NAK_ACCESS, Script, reth
from tests.support.roce_work import (
    part,
    post,
    post_receive,
    receive,
    statuses,
    towards,
    work,
    wr_ids,
)

BINDABLE = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
READ, WRITE, ATOMIC = (
    AccessFlags.REMOTE_READ,
    AccessFlags.REMOTE_WRITE,
    AccessFlags.REMOTE_ATOMIC,
)
SIZE = 1024


def bind(  # noqa: PLR0913 -- the fields of a bind
    port: Port,
    window: int,
    region: Region,
    *,
    tag: int,
    offset: int = 0,
    length: int = 256,
    access: AccessFlags = READ | WRITE,
    flags: SendFlags = SendFlags.SIGNALED,
    wr_id: int = 1,
) -> int:
    """Post a bind; return the key that the window has after it."""
    post(
        port,
        work(
            WrOpcode.BIND_MW,
            flags=flags,
            wr_id=wr_id,
            mw_key=window,
            mw_new_key=tag,
            mw_lkey=region.key,
            mw_addr=region.addr + offset,
            mw_length=length,
            mw_access=int(access),
        ),
    )
    return (window & ~0xFF) | tag


def attempt(pair: Pair, opcode: WrOpcode, addr: int, key: int, length: int = 8) -> WcStatus:
    """What becomes of an access by a to b's memory."""
    local = pair.a.region(length)
    local.data[:] = 0x55
    post(pair.a, work(opcode, [part(local)], remote_addr=addr, rkey=key))
    pair.run()
    (status,) = statuses(pair.a.poll())
    return status


def bound(kind: MwType, **how: object) -> tuple[Pair, Region, int, int]:
    """A pair, b's region, and the keys of its window before and after a bind that worked."""
    pair = Pair()
    region = pair.b.region(SIZE, BINDABLE)
    window = pair.b.engine.regions.alloc_window(1, kind)
    key = bind(pair.b, window, region, tag=0x5A, **how)  # type: ignore[arg-type]
    pair.run()
    (wc,) = pair.b.poll()
    assert (wc.status, wc.opcode) == (WcStatus.SUCCESS, WcOpcode.BIND_MW)
    assert pair.b.engine.regions.current_key(window) == key
    return pair, region, window, key


@pytest.mark.parametrize("kind", MwType)
def test_a_bound_window_opens_its_range(kind: MwType) -> None:
    pair, region, _, key = bound(kind, offset=100)
    assert attempt(pair, WrOpcode.RDMA_WRITE, region.addr + 100 + 248, key) == WcStatus.SUCCESS
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr + 100, key) == WcStatus.SUCCESS
    assert (region.data[348:356] == 0x55).all()
    assert region.data.sum() == 8 * 0x55


@pytest.mark.parametrize("kind", MwType)
@pytest.mark.parametrize("offset", [99, 349, 0, 1016])
def test_it_opens_nothing_beside_its_range(kind: MwType, offset: int) -> None:
    pair, region, _, key = bound(kind, offset=100)
    refused = attempt(pair, WrOpcode.RDMA_WRITE, region.addr + offset, key)
    assert refused == WcStatus.REM_ACCESS_ERR
    assert not region.data.any()


@pytest.mark.parametrize("kind", MwType)
@pytest.mark.parametrize(
    ("granted", "opcode"),
    [
        (READ, WrOpcode.RDMA_WRITE),
        (WRITE, WrOpcode.RDMA_READ),
        (READ | WRITE, WrOpcode.ATOMIC_FETCH_AND_ADD),
        (ATOMIC, WrOpcode.RDMA_READ),
    ],
)
def test_it_opens_only_for_what_was_granted(
    kind: MwType, granted: AccessFlags, opcode: WrOpcode
) -> None:
    pair, region, _, key = bound(kind, access=granted)
    assert attempt(pair, opcode, region.addr, key) == WcStatus.REM_ACCESS_ERR
    assert not region.data.any()


@pytest.mark.parametrize("kind", MwType)
def test_before_the_bind_it_opens_nothing(kind: MwType) -> None:
    pair = Pair()
    region = pair.b.region(SIZE, BINDABLE)
    window = pair.b.engine.regions.alloc_window(1, kind)
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, window) == WcStatus.REM_ACCESS_ERR


@pytest.mark.parametrize("kind", MwType)
def test_the_key_before_a_bind_opens_nothing_after_it(kind: MwType) -> None:
    pair, region, window, key = bound(kind)
    assert window != key
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, window) == WcStatus.REM_ACCESS_ERR


def test_a_type_1_window_is_bound_anew_at_will() -> None:
    pair, region, _, key = bound(MwType.TYPE_1)
    again = bind(pair.b, key, region, tag=0x5B, offset=512)
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.SUCCESS]
    assert attempt(pair, WrOpcode.RDMA_WRITE, region.addr + 512, again) == WcStatus.SUCCESS
    assert attempt(pair, WrOpcode.RDMA_WRITE, region.addr, key) == WcStatus.REM_ACCESS_ERR


def test_a_bind_of_no_length_closes() -> None:
    pair, region, _, key = bound(MwType.TYPE_1)
    closed = bind(pair.b, key, region, tag=0x5C, length=0)
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.SUCCESS]
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, closed) == WcStatus.REM_ACCESS_ERR


def test_a_type_2_window_must_be_invalidated_before_it_is_bound_anew() -> None:
    pair, region, _, key = bound(MwType.TYPE_2)
    bind(pair.b, key, region, tag=0x5B)
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.MW_BIND_ERR]
    assert pair.b.state == QpState.ERR


def test_a_local_invalidation_closes_a_type_2_window_for_another_bind() -> None:
    pair, region, _, key = bound(MwType.TYPE_2)
    post(pair.b, work(WrOpcode.LOCAL_INV, imm=key, wr_id=7))
    again = bind(pair.b, key, region, tag=0x5B, wr_id=8)
    pair.run()
    done = pair.b.poll()
    assert wr_ids(done) == [7, 8]
    assert [wc.opcode for wc in done] == [WcOpcode.LOCAL_INV, WcOpcode.BIND_MW]
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, again) == WcStatus.SUCCESS
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.REM_ACCESS_ERR


@pytest.mark.parametrize("what", ["type 1", "region", "nothing"])
def test_only_type_2_windows_can_be_invalidated(what: str) -> None:
    pair = Pair()
    region = pair.b.region(SIZE, BINDABLE)
    keys = {
        "type 1": pair.b.engine.regions.alloc_window(1, MwType.TYPE_1),
        "region": region.key,
        "nothing": 0xFFFFFF,
    }
    post(pair.b, work(WrOpcode.LOCAL_INV, imm=keys[what]))
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.LOC_QP_OP_ERR]


@pytest.mark.parametrize("size", [0, 100, 3000])
def test_a_send_with_invalidate_closes_the_receivers_window(size: int) -> None:
    pair, region, _, key = bound(MwType.TYPE_2)
    source, target = pair.a.region(size + 1), pair.b.region(size + 1)
    post_receive(pair.b, receive([part(target)], wr_id=4))
    post(pair.a, work(WrOpcode.SEND_WITH_INV, [part(source, 0, size)], imm=key))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    (wc,) = pair.b.poll()
    assert (wc.wr_id, wc.wc_flags, wc.imm, wc.byte_len) == (4, WcFlags.WITH_INV, key, size)
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.REM_ACCESS_ERR


def test_a_send_that_invalidates_what_is_no_window_is_refused() -> None:
    script = Script()
    region = script.port.region(SIZE)
    post_receive(script.port, receive([part(region)], wr_id=4))
    answers = script.request(Opcode.RC_SEND_ONLY_WITH_INVALIDATE, 0, Ieth(region.key), payload=b"x")
    assert answers == [f"NAK 0 {NAK_ACCESS:#04x}"]
    assert statuses(script.port.poll()) == [WcStatus.WR_FLUSH_ERR]
    assert script.port.state == QpState.ERR


def test_a_type_2_window_opens_to_its_queue_pair_alone() -> None:
    pair, region, _, key = bound(MwType.TYPE_2)
    other = Pair()
    # The second connection ends in the same engine as the first, with the same domain.
    other.b.engine = pair.b.engine
    other.b.cq = pair.b.engine.cqs.create(64)
    other.b.qp = other.b.new_qp()
    other.a.engine.qps.destroy(other.a.qp)
    other.a.qp = other.a.new_qp()
    other.a.connect(other.b, 1024)
    other.b.connect(other.a, 1024)
    assert attempt(other, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.REM_ACCESS_ERR
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.SUCCESS


def test_a_zero_based_window_is_addressed_from_nought() -> None:
    pair, region, _, key = bound(
        MwType.TYPE_2, offset=100, access=READ | WRITE | AccessFlags.ZERO_BASED
    )
    assert attempt(pair, WrOpcode.RDMA_WRITE, 3, key) == WcStatus.SUCCESS
    assert (region.data[103:111] == 0x55).all()
    assert attempt(pair, WrOpcode.RDMA_WRITE, 249, key) == WcStatus.REM_ACCESS_ERR


@pytest.mark.parametrize(
    ("region_access", "how"),
    [
        (AccessFlags.LOCAL_WRITE, {}),
        (AccessFlags.MW_BIND, {"access": WRITE}),
        (AccessFlags.MW_BIND, {"access": ATOMIC}),
        (BINDABLE, {"offset": SIZE - 255}),
        (BINDABLE, {"offset": -1}),
        (BINDABLE, {"length": SIZE + 1}),
        (BINDABLE, {"length": -1}),
        (BINDABLE, {"length": 1 << 62}),
    ],
)
@pytest.mark.parametrize("kind", MwType)
def test_a_bind_beyond_what_the_region_permits_fails(
    kind: MwType, region_access: AccessFlags, how: dict[str, int]
) -> None:
    pair = Pair()
    region = pair.b.region(SIZE, region_access)
    window = pair.b.engine.regions.alloc_window(1, kind)
    bind(pair.b, window, region, tag=1, **how)  # type: ignore[arg-type]
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.MW_BIND_ERR]
    assert pair.b.state == QpState.ERR


def test_a_region_that_only_reads_can_be_opened_for_reading() -> None:
    pair = Pair()
    region = pair.b.region(SIZE, AccessFlags.MW_BIND)
    window = pair.b.engine.regions.alloc_window(1, MwType.TYPE_1)
    key = bind(pair.b, window, region, tag=1, access=READ)
    pair.run()
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.SUCCESS


@pytest.mark.parametrize("foreign", ["window", "region"])
def test_window_region_and_queue_pair_are_of_one_domain(foreign: str) -> None:
    pair = Pair()
    region = Region(pair.b.engine, SIZE, BINDABLE, pd=2 if foreign == "region" else 1)
    window = pair.b.engine.regions.alloc_window(2 if foreign == "window" else 1, MwType.TYPE_2)
    bind(pair.b, window, region, tag=1)
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.MW_BIND_ERR]


@pytest.mark.parametrize("kind", MwType)
@pytest.mark.parametrize("how", ["deregistered", "moved"])
def test_without_its_region_a_window_opens_nothing(kind: MwType, how: str) -> None:
    """The window would lead to memory that is somebody else's by now."""
    pair, region, _, key = bound(kind)
    if how == "deregistered":
        pair.b.engine.regions.deregister(region.key)
    else:
        other = pair.b.region(SIZE)
        pair.b.engine.regions.change(region.key, memory=(other.addr, SIZE, other))
    refused = attempt(pair, WrOpcode.RDMA_WRITE, region.addr, key)
    assert refused == WcStatus.REM_ACCESS_ERR
    assert not region.data.any()


def test_a_freed_window_opens_nothing() -> None:
    pair, region, window, key = bound(MwType.TYPE_1)
    pair.b.engine.regions.dealloc_window(window)
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.REM_ACCESS_ERR


def test_a_window_is_no_local_key() -> None:
    pair, region, _, key = bound(MwType.TYPE_1)
    target = pair.a.region(8)
    post(pair.b, work(WrOpcode.RDMA_WRITE, [(region.addr, 8, key)], **towards(target)))
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.LOC_PROT_ERR]


def test_a_bind_holds_for_what_is_posted_after_it() -> None:
    """The key can be sent to the peer without waiting for the bind's completion."""
    pair = Pair()
    region, inbox = pair.b.region(SIZE, BINDABLE), pair.a.region(8)
    window = pair.b.engine.regions.alloc_window(1, MwType.TYPE_2)
    post_receive(pair.a, receive([part(inbox)]))
    source = pair.b.region(8)
    key = bind(pair.b, window, region, tag=9, flags=SendFlags(0))
    post(pair.b, work(WrOpcode.SEND, [part(source)]))
    for frame in pair.b.transmit(0):
        pair.a.receive(frame, 0)
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert attempt(pair, WrOpcode.RDMA_READ, region.addr, key) == WcStatus.SUCCESS


def test_a_fenced_invalidation_waits_for_the_reads_before_it() -> None:
    script = Script()
    local, remote = script.port.region(SIZE, BINDABLE), script.pair.a.region(SIZE)
    window = script.port.engine.regions.alloc_window(1, MwType.TYPE_2)
    key = bind(script.port, window, local, tag=3, flags=SendFlags(0))
    post(
        script.port,
        work(WrOpcode.RDMA_READ, [part(local, 0, 8)], wr_id=1, **towards(remote)),
        work(WrOpcode.LOCAL_INV, flags=SendFlags.SIGNALED | SendFlags.FENCE, imm=key, wr_id=2),
    )
    assert script.requests() == ["RDMA_READ_REQUEST 0"]
    access = script.port.engine.regions.table[window >> 8]
    assert access.length == 256, "still open while the READ is under way"
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_ONLY, 0, Aeth.ack(1), payload=bytes(8))
    script.packets()
    assert wr_ids(script.port.poll()) == [1, 2]
    assert access.length == 0


def test_local_work_is_done_once_though_its_neighbours_are_sent_again() -> None:
    script = Script()
    local, remote = script.port.region(SIZE, BINDABLE), script.pair.a.region(SIZE)
    window = script.port.engine.regions.alloc_window(1, MwType.TYPE_2)
    write = work(WrOpcode.RDMA_WRITE, [part(local, 0, 8)], wr_id=1, **towards(remote))
    post(script.port, write)
    bind(script.port, window, local, tag=3, wr_id=2)
    post(script.port, write)
    assert script.requests() == ["RDMA_WRITE_ONLY 0", "RDMA_WRITE_ONLY 1"]
    script.acknowledge(0, 0x60)
    assert script.requests() == ["RDMA_WRITE_ONLY 0", "RDMA_WRITE_ONLY 1"]
    script.acknowledge(1)
    assert [(int(wc.wr_id), int(wc.status)) for wc in script.port.poll()] == [
        (1, 0),
        (2, 0),
        (1, 0),
    ]


def test_a_write_through_a_window_from_the_wire_stops_at_its_end() -> None:
    script = Script()
    region = script.port.region(SIZE, BINDABLE)
    window = script.port.engine.regions.alloc_window(1, MwType.TYPE_1)
    key = bind(script.port, window, region, tag=3, length=300)
    script.packets()
    long = reth(region, 301, rkey=key)
    assert script.request(Opcode.RC_RDMA_WRITE_FIRST, 0, long, payload=b"x" * 256) == [
        f"NAK 0 {NAK_ACCESS:#04x}"
    ]
    assert not region.data.any()
