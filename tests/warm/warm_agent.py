"""Held: after ``kvlane agent --warm`` an agent compiles nothing, whatever hosts do to it.

The kernels are compiled into a folder of their own, which takes minutes, so this is no part of
the suite: ``make warm-check`` runs it, compiled only. The hosts' kernels lie in the usual folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import host_driver
from emulator.backend import open_device
from host_driver import DriverConfig, KeyStatus, Namespace
from host_driver.control import ControlClient
from host_driver.emulated import EmulatedAgent, EmulatedOptions
from kvlane.capsule import CommandFlags, CommandStatus, Opcode
from kvlane.errors import DrainingError
from tests.support.capsule_host import CapsuleHost, key_array
from tests.support.driver_calls import chain, payload, start_agent, wait_until
from tests.support.repository import SOURCE_ROOTS

LINKS = ("udp", "pcie")
SLOT_BYTES, SLOTS = 65536, 32
DEPTH = 8
KILLED_DRIVERS = 4
FREED_REGIONS = 20

RESTLESS_DRIVER = """
import sys
import host_driver
from host_driver import DriverConfig
config = DriverConfig(device_options={"link": sys.argv[2]})
dpu = host_driver.connect_sync(sys.argv[1], config=config)
keys = host_driver.block_chain(dpu.root_key, list(range(64)), 4)
blocks = dpu.alloc(16 << 16).reshape(16, 1 << 16)
print("connected", flush=True)
while True:
    dpu.store(keys, blocks)
    dpu.retrieve(keys, blocks)
    dpu.delete(keys)
"""


def config_file(folder: Path, link: str) -> Path:
    """An agent's configuration; what it says of sizes is compiled into nothing."""
    path = folder / f"{link}.yaml"
    path.write_text(f"device:\n  options:\n    link: {link}\n", encoding="utf-8")
    return path


def run_warm(cache: Path, config: Path) -> None:
    command = [sys.executable, "-m", "host_driver.cli.main", "agent", "--config", str(config)]
    path = os.pathsep.join(str(root) for root in SOURCE_ROOTS)
    environment = {**os.environ, "PYTHONPATH": path, "KVLANE_CACHE_DIR": str(cache)}
    subprocess.run([*command, "--warm"], env=environment, check=True)


def compiled_in(cache: Path) -> dict[str, int]:
    """Every file of kernels, with its size: a kernel for more types grows its index."""
    files = (path for path in cache.rglob("*") if path.suffix in (".nbi", ".nbc"))
    return {path.name: path.stat().st_size for path in files}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    for link in LINKS:
        run_warm(folder, config_file(folder, link))
    return folder


@contextmanager
def warm_agent(link: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedAgent]:
    options = EmulatedOptions(
        capacity=SLOTS * SLOT_BYTES, block_bytes=SLOT_BYTES, link=link, workers=2
    )
    with monkeypatch.context() as patch:
        patch.setenv("KVLANE_CACHE_DIR", str(cache))
        agent = start_agent(options)
    try:
        yield agent
    finally:
        agent.close()


def use_all_commands(agent: EmulatedAgent, link: str) -> None:
    """More blocks than the agent has room for, every command, and what it may answer."""
    config = DriverConfig(device_options={"link": link}, verify_checksums=True)
    with host_driver.connect_sync(agent.control, config=config) as dpu:
        keys, blocks = chain(dpu, 2 * SLOTS), payload(2 * SLOTS, SLOT_BYTES)
        dpu.store(keys[:SLOTS], blocks[:SLOTS])
        dpu.store(keys[SLOTS:], blocks[SLOTS:])
        assert dpu.stats().store.evicted >= SLOTS
        own = dpu.alloc(SLOTS * SLOT_BYTES).reshape(SLOTS, SLOT_BYTES)
        assert dpu.retrieve(keys[SLOTS:], own).ok.all()
        assert np.array_equal(own, blocks[SLOTS:])
        assert dpu.retrieve(keys[-1:], [bytearray(10)]).statuses == [KeyStatus.BAD_LENGTH]
        assert dpu.store(keys[:1], [bytes(SLOT_BYTES + 1)]).statuses == [KeyStatus.BAD_LENGTH]
        dpu.free(own)
        dpu.match(keys)
        dpu.exist(keys)
        dpu.delete(keys)


@contextmanager
def bare_host(agent: EmulatedAgent, link: str) -> Iterator[tuple[CapsuleHost, ControlClient, str]]:
    """A host that sends whatever it likes, its control client, and the name of its session."""
    device = open_device({"link": link})
    client = ControlClient(agent.control)
    try:
        host = CapsuleHost(device)
        opened = client.open_session("bare", Namespace(), host.qp.endpoint, [host.region], DEPTH)
        client.watch(opened.name, lambda *_: None)
        host.attach(opened.endpoint, opened.session_id)
        yield host, client, opened.name
    finally:
        client.close()
        device.close()


def answers(host: CapsuleHost, count: int) -> list[int]:
    """Statuses of the next so many commands."""
    found: list[int] = []
    while len(found) < count:
        found += [response.status for response in host.responses()]
        assert host.statuses == []
        if not host.device.progress():
            host.device.wait(1.0)
    return found


def send_what_is_refused(agent: EmulatedAgent, link: str) -> None:
    """Garbage, another's session, memory that is not registered, a wrong checksum, too much."""
    with bare_host(agent, link) as (host, _, _):
        host.send_bytes(np.zeros(64, np.uint8))
        host.send(Opcode.MATCH, key_array(1), session=host.session + 1)
        assert CommandStatus.OK not in answers(host, 2)
        nowhere = host.descriptors(0)
        nowhere["rkey"] = host.region.rkey ^ 1
        host.send(Opcode.STORE, key_array(1), nowhere)
        host.send(Opcode.STORE, key_array(2), host.descriptors(0), flags=CommandFlags.CHECKSUM)
        assert answers(host, 2) == [CommandStatus.OK] * 2
        keys = key_array(*range(100, 200))
        for _ in range(2 * DEPTH):
            host.send(Opcode.STORE, keys, host.descriptors(*range(100)))
        answers(host, 2 * DEPTH)


def take_memory_back_under_way(agent: EmulatedAgent, link: str) -> None:
    """Regions end while commands use them."""
    keys = key_array(*range(300, 332))
    for _ in range(FREED_REGIONS):
        with bare_host(agent, link) as (host, client, name), ThreadPoolExecutor(1) as freeing:
            for _ in range(DEPTH):
                host.send(Opcode.STORE, keys, host.descriptors(*range(32)))
                host.send(Opcode.DELETE, keys)
            freed = freeing.submit(client.deregister_memory, name, [host.region.rkey])
            while not freed.done():
                host.responses()
                host.device.progress()
            freed.result()


def lie_about_memory(agent: EmulatedAgent, link: str) -> None:
    """A key that the host's NIC does not know breaks the session."""
    with bare_host(agent, link) as (host, client, _):
        host.region.close()
        host.send(Opcode.STORE, key_array(9000), host.descriptors(0))
        for _ in range(10_000):
            host.responses()
            if host.statuses or not client.stats().sessions:
                break
            if not host.device.progress():
                host.device.wait(1.0)
        wait_until(lambda: client.stats().sessions == 0)


def kill_drivers(agent: EmulatedAgent, link: str) -> None:
    """Hosts that die at any moment, the last one after it has hung."""
    path = os.pathsep.join(str(root) for root in SOURCE_ROOTS)
    command = [sys.executable, "-c", RESTLESS_DRIVER, agent.control, link]
    operator = ControlClient(agent.control)
    for number in range(KILLED_DRIVERS):
        driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"connected\n"
        before = operator.stats().store.stored
        wait_until(lambda before=before: operator.stats().store.stored > before + 100)
        if number == KILLED_DRIVERS - 1:
            driver.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, driver.pid, os.WSTOPPED)
        driver.kill()
        driver.communicate()
        wait_until(lambda: operator.stats().sessions == 0)
    operator.close()


def drain_and_leave(agent: EmulatedAgent, link: str) -> None:
    """It takes no new sessions, and ends while one is open."""
    with bare_host(agent, link) as (host, client, _):
        client.drain()
        with pytest.raises(DrainingError):
            client.open_session("late", Namespace(), host.qp.endpoint, [host.region], 1)
        agent.close()


@pytest.mark.parametrize("link", LINKS)
def test_an_agent_that_was_warmed_compiles_nothing(
    link: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiled_in(cache)
    steps = (
        use_all_commands,
        send_what_is_refused,
        take_memory_back_under_way,
        lie_about_memory,
        kill_drivers,
        drain_and_leave,
    )
    added: dict[str, list[str]] = {}
    known = dict(before)
    with warm_agent(link, cache, monkeypatch) as agent:
        for step in steps:
            step(agent, link)
            now = compiled_in(cache)
            added[step.__name__] = sorted(n for n in now if now[n] != known.get(n))
            known = now
    assert {step: names for step, names in added.items() if names} == {}
