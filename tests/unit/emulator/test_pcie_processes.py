"""Two processes: traffic both ways, and the death of one."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from kvlane.verbs.enums import QpState, WcStatus, WrOpcode
from tests.support.verbs_backends import ALL_ACCESS, Pair, device_of


def _peer(link: Connection) -> None:
    """Write 7s to the other process, then stay until killed."""
    with device_of("pcie") as device:
        pair = Pair(device)
        link.send(pair.near.endpoint)
        endpoint, addr, rkey = link.recv()
        pair.near.connect(endpoint)
        pair.near_bytes[:] = 7
        for opcode in (WrOpcode.RDMA_WRITE, WrOpcode.SEND):
            pair.near.post_send(pair.sends(opcode=opcode, remote_addr=addr, rkey=rkey))
            assert pair.completions(1).status[0] == WcStatus.SUCCESS
        link.send("done")
        link.recv()


def test_a_killed_peer_fails_the_queue_pair_and_flushes_it() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_peer, args=(theirs,), daemon=True)
    process.start()
    try:
        with device_of("pcie") as device:
            pair = Pair(device)
            pair.far.post_recv(pair.receives(3))
            pair.far.connect(ours.recv())
            written = device.alloc(Pair.NBYTES)
            region = device.register(written, ALL_ACCESS)
            ours.send((pair.far.endpoint, region.addr, region.rkey))
            assert pair.completions(1).status[0] == WcStatus.SUCCESS
            assert (written == 7).all()
            assert (pair.far_bytes == 7).all()
            assert ours.recv() == "done"
            process.kill()
            assert (pair.completions(2).status == WcStatus.WR_FLUSH_ERR).all()
            assert pair.far.state is QpState.ERR
    finally:
        process.kill()
        process.join()
