"""NICs on raw links: verbs between two hosts, from any GID of the table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from emulator.backend import EmulatedDevice, open_device
from emulator.pyverbs import devices, fabric
from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs.addr import AH, AHAttr, GlobalRoute
from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError
from emulator.pyverbs.qp import QPAttr
from host_driver.self_test import self_test
from kvlane.errors import ConfigError, VerbsError
from kvlane.verbs.enums import AccessFlags, Mtu, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import SEND_WR, WC, new_records
from tests.support.network_namespaces import Host, cable
from tests.support.pyverbs_endpoints import QKEY, RC, SUCCESS, UD, Endpoint, poll
from tests.support.repository import ROOT

Hosts = tuple[Host, Host]
NBYTES = 100_000
PATIENCE_S = 60
OPTIONS = {"link": "raw", "interface": Host.INTERFACE}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with cable() as both:
        yield both


def device_on(host: Host, **options: object) -> EmulatedDevice:
    with host.entered():
        return open_device({**OPTIONS, **options})


def test_a_write_between_two_hosts(hosts: Hosts) -> None:
    """As agent and driver do it; faults make it go again, until all is there."""
    lossy = {"faults": "drop=0.02,dup=0.02,reorder=0.02", "seed": 5}
    with closing(device_on(hosts[0], **lossy)) as near, closing(device_on(hosts[1])) as far:
        source, target = near.alloc(NBYTES), far.alloc(NBYTES)
        source[:] = np.arange(NBYTES) % 251
        from_here = near.register(source, AccessFlags.LOCAL_WRITE)
        to_there = far.register(target, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
        cq = near.create_cq(16)
        one, two = near.create_qp(cq, QpOptions()), far.create_qp(far.create_cq(16), QpOptions())
        assert one.endpoint.mtu_bytes == 4096
        one.connect(two.endpoint)
        two.connect(one.endpoint)
        write = new_records(SEND_WR, 1)
        how = (7, WrOpcode.RDMA_WRITE, SendFlags.SIGNALED, 0)
        where = (from_here.addr, NBYTES, from_here.lkey, to_there.addr, to_there.rkey, 0)
        write[0] = (*how, *where)
        one.post_send(write)
        done, give_up = new_records(WC, 1), time.monotonic() + PATIENCE_S
        while not cq.poll(done):
            assert time.monotonic() < give_up
            far.progress() or near.progress() or near.wait(1)
        assert (done[0].wr_id, done[0].status) == (7, WcStatus.SUCCESS)
        assert (target == source).all()


def test_a_nic_reaches_itself(hosts: Hosts) -> None:
    with closing(device_on(hosts[0])) as device:
        assert f"interface wire, {hosts[0].ipv4}, MTU 4096" in device.name
        assert self_test(device, time.monotonic_ns)


def test_devices_of_an_interface_share_its_nic_and_nothing_else(hosts: Hosts) -> None:
    first, second = device_on(hosts[0]), device_on(hosts[0])
    memory = first.register(first.alloc(64), AccessFlags.LOCAL_WRITE)
    qp = first.create_qp(first.create_cq(4), QpOptions())
    with pytest.raises(ConfigError, match="open with other options"):
        device_on(hosts[0], mtu_bytes=1024)
    first.close()
    first.close()
    with pytest.raises(VerbsError, match="closed"):
        qp.connect(qp.endpoint)
    memory.close()
    assert self_test(second, time.monotonic_ns)
    second.close()
    device_on(hosts[0], mtu_bytes=1024).close()


def test_memory_of_one_device_is_no_others(hosts: Hosts) -> None:
    """They share a NIC, but neither its protection domain nor, so, its keys."""
    with closing(device_on(hosts[0])) as first, closing(device_on(hosts[0])) as second:
        theirs = first.register(first.alloc(64), AccessFlags.LOCAL_WRITE)
        cq = second.create_cq(4)
        qp = second.create_qp(cq, QpOptions())
        qp.connect(qp.endpoint)
        write = new_records(SEND_WR, 1)
        write[0] = (1, WrOpcode.SEND, SendFlags.SIGNALED, 0, theirs.addr, 64, theirs.lkey, 0, 0, 0)
        qp.post_send(write)
        done, give_up = new_records(WC, 1), time.monotonic() + PATIENCE_S
        while not cq.poll(done):
            assert time.monotonic() < give_up
            second.progress()
        assert done[0].status == WcStatus.LOC_PROT_ERR


def test_an_mtu_that_the_interface_does_not_hold_is_refused() -> None:
    with cable(mtu_bytes=1500) as (host, _):
        with host.entered(), pytest.raises(ConfigError, match="write mtu_bytes: 1024, or ip link"):
            open_device({**OPTIONS, "mtu_bytes": 2048})
        with closing(device_on(host)) as device:
            assert "MTU 1024" in device.name


@contextmanager
def two_ends(hosts: Hosts, kind: int = RC) -> Iterator[tuple[Endpoint, Endpoint]]:
    """An endpoint on each host; a process has one fabric, so the second takes the first's place."""
    ends: list[Endpoint] = []
    before: list[fabric.Fabric | None] = []
    try:
        for number, host in enumerate(hosts):
            name = f"host{number}x"
            config = FabricConfig(link="raw", interface=Host.INTERFACE, name=name)
            with host.entered():
                before.append(fabric.install(config))
                ends.append(Endpoint(f"{name}0", kind, nbytes=65536))
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()
        while before:
            fabric.restore(before.pop())


def path_to(peer: Endpoint, index: int, from_index: int | None = None) -> AHAttr:
    """To a GID of the peer, from that of the same index unless another is named."""
    sgid_index = index if from_index is None else from_index
    route = GlobalRoute(dgid=peer.context.query_gid(1, index), sgid_index=sgid_index)
    return AHAttr(port_num=1, is_global=1, gr=route)


def connect(end: Endpoint, peer: Endpoint, index: int, from_index: int | None = None) -> None:
    attr = QPAttr()
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
    attr.ah_attr = path_to(peer, index, from_index)
    attr.path_mtu = e.IBV_MTU_4096
    attr.dest_qp_num = peer.qp.qp_num
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 1
    attr.sq_psn = attr.rq_psn = 0xFFFFFE
    end.qp.to_rts(attr)


every_gid = pytest.mark.parametrize("index", [0, 1, 2], ids=["ipv4", "link-local", "ipv6"])


@every_gid
def test_connected_queue_pairs_use_the_gid_of_their_path(hosts: Hosts, index: int) -> None:
    with two_ends(hosts) as (client, server):
        connect(client, server, index)
        connect(server, client, index)
        server.qp.post_recv(server.recv_wr(0, 40_000))
        client.mr.write(b"x" * 40_000, 40_000)
        client.qp.post_send(client.send_wr(length=40_000, send_flags=e.IBV_SEND_SIGNALED))
        assert [poll(end.cq)[0].status for end in (client, server)] == [SUCCESS] * 2
        assert server.mr.read(40_000, 0) == b"x" * 40_000


def test_a_queue_pair_takes_nothing_that_is_for_another_gid(hosts: Hosts) -> None:
    """Both ends must mean the same two addresses, as on real NICs."""
    with two_ends(hosts) as (client, server):
        connect(client, server, index=1, from_index=2)
        connect(server, client, index=2)
        client.qp.post_send(client.send_wr(send_flags=e.IBV_SEND_SIGNALED))
        assert poll(client.cq)[0].status == e.ibv_wc_status.IBV_WC_RETRY_EXC_ERR
        assert server.context.port.nic.counters()["rx_unknown_qp"] > 0


@every_gid
def test_datagrams_and_their_answers_use_the_gid_of_the_handle(hosts: Hosts, index: int) -> None:
    with two_ends(hosts, UD) as (client, server):
        for end in (client, server):
            end.qp.post_recv(end.recv_wr(0, 1024))
        send(client, AH(client.pd, attr=path_to(server, index)), server.qp.qp_num)
        completion = poll(server.cq)[0]
        back = AH(server.pd, wc=completion, grh=server.mr.buf)
        assert back.path.sgid_index == index
        assert back.path.dgid == client.context.port.gids[index]
        send(server, back, completion.src_qp)
        assert poll(client.cq)[0].status == SUCCESS


def send(end: Endpoint, handle: AH, remote_qpn: int) -> None:
    request = end.send_wr()
    request.set_wr_ud(handle, remote_qpn, QKEY)
    end.qp.post_send(request)


def test_addresses_of_two_ip_versions_make_no_path(hosts: Hosts) -> None:
    with two_ends(hosts) as (client, server):
        route = GlobalRoute(dgid=server.context.query_gid(1, 2), sgid_index=0)
        with pytest.raises(PyverbsRDMAError, match="choose another sgid_index"):
            AH(client.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))


PROGRAM = """
from pyverbs.device import Context, get_device_list
context = Context(name=get_device_list()[0].name.decode())
print([entry.gid_str() for entry in context.query_gid_table(16)])
"""


def run_drop_in(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["ip", "netns", "exec", host.name, sys.executable, "-m", "emulator.pyverbs"]
    return subprocess.run(
        [*command, "--link", "raw", *options, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/proto"},
    )


@pytest.mark.parametrize("link", ["raw", "udp"])
def test_a_device_of_the_drop_in_has_the_mtu_that_its_interface_holds(link: str) -> None:
    with cable(mtu_bytes=1500) as (host, _), host.entered():
        options = OPTIONS if link == "raw" else {"listen": f"{host.ipv4}:0"}
        with devices(1, **options) as found:
            assert found[0].open().mtu == Mtu.MTU_1024


def test_a_child_lets_its_parent_open_the_interface_again(hosts: Hosts) -> None:
    """What it has inherited holds neither the port nor the interface.

    It is forked outside the namespace: gRPC begins its threads anew after a fork, and they would
    stay where the fork was, for all tests that follow.
    """
    with devices(1, **OPTIONS) as found:
        with hosts[0].entered():
            found[0].open()
        end, child_end = os.pipe()
        born, delivery = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(child_end)
            os.write(delivery, b"!")  # what is to be done after a fork has been done
            os.read(end, 1)  # until the parent closes its end
            os._exit(0)
        os.close(end)
    os.read(born, 1)
    for descriptor in (born, delivery):
        os.close(descriptor)
    try:
        with hosts[0].entered(), devices(1, **OPTIONS) as found:
            assert found[0].open().is_open
    finally:
        os.close(child_end)
        os.waitpid(pid, 0)


def test_a_program_runs_on_an_interface(hosts: Hosts) -> None:
    done = run_drop_in(hosts[0], "--interface", Host.INTERFACE)
    assert done.returncode == 0, done.stderr
    assert "0000:0000:0000:0000:0000:ffff:0a4d:0001" in done.stdout
    assert "fd77:0000:0000:0000:0000:0000:0000:0001" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--interface", "eth9"], "there is no interface 'eth9'"),
        ([], "the raw link needs one"),
        (["--interface", Host.INTERFACE, "--devices", "2"], "an interface has one NIC"),
    ],
)
def test_a_program_does_not_start_without(hosts: Hosts, options: list[str], told: str) -> None:
    done = run_drop_in(hosts[0], *options)
    assert done.returncode == 2
    assert told in done.stderr
