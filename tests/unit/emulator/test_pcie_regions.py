"""Regions that close while a message is under way, keys that open nothing, options refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from emulator.nic.options import NicOptions
from kvlane.errors import ConfigError, VerbsError
from kvlane.verbs.enums import AccessFlags, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.protocols import Device
from tests.support.verbs_backends import ALL_ACCESS, Pair, device_of

_NBYTES = 16 << 20


@pytest.fixture
def device() -> Iterator[Device]:
    with device_of("pcie") as opened:
        yield opened


@pytest.fixture
def pair(device: Device) -> Pair:
    return Pair(device).connect()


@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.RDMA_READ])
def test_nothing_is_written_to_a_region_after_it_is_closed(pair: Pair, opcode: WrOpcode) -> None:
    memory = {name: pair.device.alloc(_NBYTES) for name in ("near", "far")}
    near = pair.device.register(memory["near"], ALL_ACCESS)
    far = pair.device.register(memory["far"], ALL_ACCESS)
    reads = opcode is WrOpcode.RDMA_READ
    source, target = ("far", "near") if reads else ("near", "far")
    memory[source][:] = 1
    pair.far.post_recv(pair.receives(local_addr=far.addr, length=_NBYTES, lkey=far.lkey))
    request = pair.sends(
        opcode=opcode,
        length=_NBYTES,
        local_addr=near.addr,
        lkey=near.lkey,
        remote_addr=far.addr,
        rkey=far.rkey,
    )
    pair.near.post_send(request)
    while not memory[target][0]:
        pair.device.progress()
    (near if reads else far).close()
    assert not memory[target][-1]
    memory[target][:] = 7
    done = pair.completions(1 if reads else 2)
    assert WcStatus.LOC_PROT_ERR in done.status
    assert (memory[target] == 7).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"rkey": 0},
        {"rkey": -1},
        {"length": Pair.NBYTES + 1, "local_addr": 0},
        {"remote_addr": -(1 << 63)},
        {"remote_addr": (1 << 63) - 1},
    ],
)
@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_key_opens_its_range_and_nothing_else(
    pair: Pair, opcode: WrOpcode, wrong: dict[str, int]
) -> None:
    room = pair.device.alloc(2 * Pair.NBYTES)
    local = pair.device.register(room, ALL_ACCESS)
    fields = {**wrong, "local_addr": local.addr, "lkey": local.lkey}
    request = pair.sends(opcode=opcode)
    for name, value in fields.items():
        request[name] = np.array(value, np.int64).astype(request[name].dtype)
    room[:] = 5
    pair.near.post_send(request)
    assert pair.completions(1).status[0] == WcStatus.REM_ACCESS_ERR
    assert (room == 5).all()
    assert not pair.far_bytes.any()


def test_a_key_opens_only_for_its_access(pair: Pair) -> None:
    readable = pair.device.register(pair.far_bytes, AccessFlags.REMOTE_READ)
    pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, rkey=readable.rkey))
    assert pair.completions(1).status[0] == WcStatus.REM_ACCESS_ERR


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"send_flags": SendFlags.SIGNALED | SendFlags.INLINE}, "no inline data: post from"),
        ({"opcode": WrOpcode.ATOMIC_FETCH_AND_ADD}, "SEND, RDMA_WRITE and RDMA_READ only"),
        ({"opcode": WrOpcode.ATOMIC_CMP_AND_SWP}, "SEND, RDMA_WRITE and RDMA_READ only"),
        ({"length": -1}, "length is negative"),
        ({"length": (1 << 31) + 1}, "above max_message_bytes"),
    ],
)
def test_what_the_link_cannot_do_is_refused_when_it_is_posted(
    pair: Pair, fields: dict[str, int], text: str
) -> None:
    batch = pair.sends(2, opcode=WrOpcode.RDMA_WRITE)
    for name, value in fields.items():
        batch[name][1] = value
    pair.near_bytes[:] = 7
    with pytest.raises(VerbsError, match=text):
        pair.near.post_send(batch)
    assert not pair.far_bytes.any()
    pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE))
    assert pair.completions(1).status[0] == WcStatus.SUCCESS


@pytest.mark.parametrize(
    "options",
    [
        NicOptions(link="pcie", interface="eth0"),
        NicOptions(link="pcie", faults="drop=0.1"),
        NicOptions(link="pcie", pcap="x.pcap"),
        NicOptions(link="pcie", trace="x.json"),
        NicOptions(link="pcie", congestion_bps=1),
    ],
)
def test_options_of_packets_are_refused(options: NicOptions) -> None:
    with pytest.raises(ConfigError, match="pcie link has no packets"):
        options.validate()
