"""Held: STORE, RETRIEVE, MATCH, EXIST and DELETE do what the driver's API says of them.

Driver and agent are real processes with real NICs or emulated ones (``tests.support.kv_target``).
Tests share one agent, each with a namespace of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
import pytest_asyncio

from host_driver import Dpu, KeyStatus, Namespace
from kvlane.errors import ConfigError, NamespaceMismatchError, SessionError
from tests.support.driver_calls import BLOCK, chain, payload
from tests.support.kv_target import LINKS, SLOT_BYTES, KvTarget, kv_target


@pytest.fixture(scope="module", params=LINKS)
def target(request: pytest.FixtureRequest) -> Iterator[KvTarget]:
    with kv_target(request.param) as made:
        yield made


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Namespace:
    return Namespace(name=request.node.name)


@pytest_asyncio.fixture
async def dpu(target: KvTarget, namespace: Namespace) -> AsyncIterator[Dpu]:
    async with await target.connect(namespace) as connected:
        yield connected


async def test_blocks_of_every_kind_come_back(dpu: Dpu) -> None:
    keys = chain(dpu, 3)
    numbers = np.arange(100, dtype=np.int64)
    blocks = [b"some bytes", bytearray(b"more bytes"), numbers]
    assert (await dpu.store(keys, blocks)).statuses.tolist() == [KeyStatus.OK] * 3
    came = np.zeros(100, np.int64)
    into = [bytearray(10), memoryview(bytearray(10)), came]
    result = await dpu.retrieve(keys, into)
    assert result.ok.all()
    assert result.lengths.tolist() == [10, 10, 800]
    assert bytes(into[0]) == b"some bytes"
    assert bytes(into[1]) == b"more bytes"
    assert np.array_equal(came, numbers)


async def test_registered_memory_serves_both_ways(dpu: Dpu) -> None:
    keys = chain(dpu, 16)
    source = dpu.alloc(16 * BLOCK).reshape(16, BLOCK)
    source[:] = payload(16)
    own = np.zeros((16, BLOCK // 2), np.uint16)
    dpu.register(own)
    assert (await dpu.store(keys, source)).ok.all()
    assert (await dpu.retrieve(keys[::-1], own)).ok.all()
    assert np.array_equal(own.view(np.uint8)[::-1], source)
    await dpu.free(own)
    await dpu.free(source)
    own[:] = 0
    assert (await dpu.retrieve(keys, own)).ok.all()  # through staging now
    assert np.array_equal(own.view(np.uint8), payload(16))


async def test_memory_is_registered_once_and_freed_once(dpu: Dpu) -> None:
    memory = dpu.alloc(BLOCK)
    with pytest.raises(ConfigError, match="overlaps"):
        dpu.register(memory[100:200])
    dpu.free(memory)
    with pytest.raises(ConfigError, match="no registered memory"):
        dpu.free(memory)
    with pytest.raises(ConfigError, match="allocate 0 bytes"):
        dpu.alloc(0)


async def test_more_keys_than_a_capsule_holds(dpu: Dpu) -> None:
    count = 1500
    keys, blocks = chain(dpu, count), payload(count, 128)
    assert await dpu.match(keys) == 0
    assert (await dpu.store(keys, blocks)).ok.all()
    assert await dpu.match(keys) == count
    assert await dpu.match(keys[:1100]) == 1100
    chains = [keys, keys[:1100], keys[:0], keys[5:]]
    assert (await dpu.match_each(chains)).tolist() == [count, 1100, 0, count - 5]
    into = np.zeros_like(blocks)
    assert (await dpu.retrieve(keys, into)).ok.all()
    assert np.array_equal(into, blocks)
    await dpu.delete(keys[1200:1201])
    assert await dpu.match(keys) == 1200
    assert (await dpu.match_each([keys, keys[:7]])).tolist() == [1200, 7]
    assert (~await dpu.exist(keys)).nonzero()[0].tolist() == [1200]


async def test_many_calls_at_once(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 300), payload(300)
    into = np.zeros_like(blocks)
    parts = [slice(start, start + 3) for start in range(0, 300, 3)]
    await asyncio.gather(*(dpu.store(keys[part], blocks[part]) for part in parts))
    await asyncio.gather(*(dpu.retrieve(keys[part], into[part]) for part in parts))
    assert np.array_equal(into, blocks)


async def test_a_partial_hit_is_told_key_by_key(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 6), payload(6)
    held = [0, 1, 3]
    await dpu.store([keys[i] for i in held], [blocks[i] for i in held])
    into = np.full_like(blocks, 0xEE)
    result = await dpu.retrieve(keys, into)
    assert result.ok.nonzero()[0].tolist() == held
    assert set(result.statuses[[2, 4, 5]].tolist()) == {KeyStatus.NOT_FOUND}
    assert np.array_equal(into[held], blocks[held])
    assert (into[[2, 4, 5]] == 0xEE).all()
    assert await dpu.match(keys) == 2


async def test_the_first_writer_of_a_key_wins(dpu: Dpu) -> None:
    (key,) = chain(dpu, 1)
    await dpu.store([key], [b"first"])
    second = await dpu.store([key], [b"other"])
    assert second.statuses.tolist() == [KeyStatus.EXISTS]
    assert second.ok.all()
    into = bytearray(5)
    await dpu.retrieve([key], [into])
    assert bytes(into) == b"first"


async def test_wrong_lengths_are_told_key_by_key(dpu: Dpu) -> None:
    keys = chain(dpu, 2)
    result = await dpu.store(keys, [bytes(SLOT_BYTES + 1), bytes(SLOT_BYTES)])
    assert result.statuses.tolist() == [KeyStatus.BAD_LENGTH, KeyStatus.OK]
    short = await dpu.retrieve(keys[1:], [bytearray(100)])
    assert short.statuses.tolist() == [KeyStatus.BAD_LENGTH]
    assert short.lengths.tolist() == [SLOT_BYTES]


async def test_deleted_blocks_are_gone(dpu: Dpu) -> None:
    keys = chain(dpu, 3)
    await dpu.store(keys, payload(3))
    statuses = await dpu.delete([keys[1], b"\0" * 32])
    assert statuses.tolist() == [KeyStatus.OK, KeyStatus.NOT_FOUND]
    assert (await dpu.exist(keys)).tolist() == [True, False, True]


async def test_without_keys_there_is_nothing_to_do(dpu: Dpu) -> None:
    assert await dpu.match([]) == 0
    assert len((await dpu.store([], [])).ok) == 0
    assert len(await dpu.exist(np.zeros((0, 32), np.uint8))) == 0


async def test_two_hosts_see_each_others_blocks(target: KvTarget, namespace: Namespace) -> None:
    async with (
        await target.connect(namespace) as writer,
        await target.connect(namespace) as reader,
    ):
        keys, blocks = chain(writer, 40), payload(40)
        await writer.store(keys, blocks)
        into = np.zeros_like(blocks)
        assert await reader.match(chain(reader, 40)) == 40
        await reader.retrieve(keys, into)
        assert np.array_equal(into, blocks)


async def test_another_tenant_cannot_name_a_block(
    target: KvTarget, namespace: Namespace, dpu: Dpu
) -> None:
    await dpu.store(chain(dpu, 4), payload(4))
    async with await target.connect(namespace, salt=b"tenant") as other:
        assert await other.match(chain(other, 4)) == 0


async def test_another_layout_under_the_same_name_is_refused(
    target: KvTarget, dpu: Dpu, namespace: Namespace
) -> None:
    with pytest.raises(NamespaceMismatchError, match="kv_dtype") as caught:
        await target.connect(Namespace(name=namespace.name, kv_dtype="fp8"))
    assert caught.value.field == "kv_dtype"


async def test_blocks_of_another_size_than_the_namespaces_are_refused(
    target: KvTarget, namespace: Namespace
) -> None:
    sized = Namespace(name=namespace.name, block_bytes=100)
    async with await target.connect(sized) as dpu:
        keys = chain(dpu, 2)
        with pytest.raises(ConfigError, match=r"blocks\[1\] has 99 bytes"):
            await dpu.store(keys, [bytes(100), bytes(99)])
        with pytest.raises(ConfigError, match=r"into\[0\] has 99 bytes"):
            await dpu.retrieve(keys, [bytearray(99), bytearray(100)])
        assert not (await dpu.exist(keys)).any()


async def test_a_namespace_whose_blocks_fit_no_slot_is_refused(target: KvTarget) -> None:
    with pytest.raises(SessionError, match="block_bytes"):
        await target.connect(Namespace(name="too large", block_bytes=SLOT_BYTES + 1))


async def test_arguments_that_do_not_fit_are_refused(dpu: Dpu) -> None:
    keys = chain(dpu, 2)
    with pytest.raises(ConfigError, match="2 keys, but blocks has 1"):
        await dpu.store(keys, [b"x"])
    with pytest.raises(ConfigError, match=r"into\[1\] is read-only"):
        await dpu.retrieve(keys, [bytearray(1), b"x"])
    assert await dpu.match(keys) == 0


async def test_checksums_pass_over_sound_memory(target: KvTarget, namespace: Namespace) -> None:
    async with await target.connect(namespace, verify_checksums=True) as dpu:
        keys, blocks = chain(dpu, 20), payload(20)
        assert (await dpu.store(keys, blocks)).ok.all()
        into = dpu.alloc(20 * BLOCK).reshape(20, BLOCK)
        assert (await dpu.retrieve(keys, into)).ok.all()
        assert np.array_equal(into, blocks)


def test_the_blocking_client_does_the_same(target: KvTarget, namespace: Namespace) -> None:
    with target.connect_sync(namespace) as dpu:
        keys, blocks = chain(dpu, 60), payload(60)
        assert dpu.store(keys, blocks).ok.all()
        assert dpu.match(keys) == 60
        into = dpu.alloc(60 * BLOCK).reshape(60, BLOCK)
        assert dpu.retrieve(keys, into).ok.all()
        assert np.array_equal(into, blocks)
        dpu.free(into)
        assert dpu.delete(keys[:1]).tolist() == [KeyStatus.OK]
        assert dpu.exist(keys[:2]).tolist() == [False, True]
        assert dpu.stats().store.block_bytes == SLOT_BYTES
    with pytest.raises(SessionError):
        dpu.match(keys)


def test_threads_share_a_blocking_client(target: KvTarget, namespace: Namespace) -> None:
    with target.connect_sync(namespace) as dpu:
        wrong: list[object] = []

        def work(number: int) -> None:
            keys, blocks = chain(dpu, 5, 1000 * number), payload(5, seed=number)
            for _ in range(20):
                into = np.zeros_like(blocks)
                stored, got = dpu.store(keys, blocks).ok, dpu.retrieve(keys, into).ok
                if not (stored.all() and got.all() and np.array_equal(into, blocks)):
                    wrong.append((number, stored, got))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
