"""rping's protocol as a pyverbs program, so that the emulator can be the peer of rping itself.

The client tells where its text lies, the server reads it and says so; the client tells where
it wants the text back, the server writes it there and says so (rdma-core, rping(1)).

    rping.py server IP PORT COUNT
    rping.py client IP PORT COUNT
"""

from __future__ import annotations

import struct
import sys
from typing import Any

from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.libibverbs_enums import ibv_qp_type, ibv_send_flags, ibv_wc_status
from pyverbs.librdmacm_enums import RAI_PASSIVE, rdma_port_space
from pyverbs.qp import QPCap, QPInitAttr

ADVERT = struct.Struct(">QII")
"""Address, key and length of the sender's memory; of the server's answers only the arrival
counts, but they are as long."""
TEXT_BYTES = 64
SIGNALED = ibv_send_flags.IBV_SEND_SIGNALED
DEPTH = 16


class Peer:
    """A connected ID with room for adverts."""

    def __init__(self, cm_id: CMID) -> None:
        self.id = cm_id
        self.out = cm_id.reg_msgs(ADVERT.size)
        self.arrivals = cm_id.reg_msgs(ADVERT.size)
        cm_id.post_recv(self.arrivals, ADVERT.size)

    def say(self, address: int = 0, rkey: int = 0, nbytes: int = 0) -> None:
        """Send an advert and wait until it is there."""
        self.out.write(ADVERT.pack(address, rkey, nbytes), ADVERT.size)
        self.id.post_send(self.out, SIGNALED)
        self.sent()

    def hear(self) -> tuple[int, int, int]:
        """The next advert; another receive takes its place first."""
        require_success(self.id.get_recv_comp())
        advert = ADVERT.unpack(self.arrivals.read(ADVERT.size, 0))
        self.id.post_recv(self.arrivals, ADVERT.size)
        address, rkey, nbytes = advert
        return address, rkey, nbytes

    def sent(self) -> None:
        """Wait for the completion of what was posted last."""
        require_success(self.id.get_send_comp())


def require_success(completion: Any) -> None:
    """End the program unless a request went well."""
    if completion is None or completion.status != ibv_wc_status.IBV_WC_SUCCESS:
        sys.exit(f"a request failed: {completion}")


def init_attributes() -> QPInitAttr:
    """Of the queue pairs."""
    cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
    return QPInitAttr(qp_type=ibv_qp_type.IBV_QPT_RC, cap=cap, sq_sig_all=0)


def text(number: int) -> bytes:
    """As rping makes it: a heading, then letters, and a zero at the end."""
    head = f"rdma-ping-{number}: ".encode()
    letters = bytes(65 + (number + place) % 26 for place in range(TEXT_BYTES - len(head) - 1))
    return head + letters + b"\0"


def serve(ip: str, port: str, count: int) -> None:
    """Take one connection and answer its pings."""
    address = AddrInfo(
        src=ip, src_service=port, port_space=rdma_port_space.RDMA_PS_TCP, flags=RAI_PASSIVE
    )
    listener = CMID(creator=address, qp_init_attr=init_attributes())
    listener.listen()
    print("listening", flush=True)
    child = listener.get_request()
    peer = Peer(child)
    child.accept(ConnParam(resources=1, depth=1))
    memory = child.reg_msgs(1 << 16)
    for _ in range(count):
        where, rkey, nbytes = peer.hear()
        child.post_read(memory, nbytes, where, rkey, SIGNALED)
        peer.sent()
        got = memory.read(nbytes, 0)
        peer.say()
        where, rkey, nbytes = peer.hear()
        child.post_write(memory, nbytes, where, rkey, SIGNALED)
        peer.sent()
        peer.say()
        print("served", got.rstrip(b"\0")[:20], flush=True)


def ping(ip: str, port: str, count: int) -> None:
    """Connect, ping and compare."""
    address = AddrInfo(dst=ip, dst_service=port, port_space=rdma_port_space.RDMA_PS_TCP)
    client = CMID(creator=address, qp_init_attr=init_attributes())
    peer = Peer(client)
    source, sink = client.reg_read(TEXT_BYTES), client.reg_write(TEXT_BYTES)
    client.connect(ConnParam(resources=1, depth=1))
    for number in range(count):
        source.write(text(number), TEXT_BYTES)
        peer.say(source.buf, source.rkey, TEXT_BYTES)
        peer.hear()
        peer.say(sink.buf, sink.rkey, TEXT_BYTES)
        peer.hear()
        back = sink.read(TEXT_BYTES, 0).split(b"\0")[0]
        if back != text(number).split(b"\0")[0]:
            sys.exit(f"ping {number} came back as {back!r}")
        print("pinged", back[:20], flush=True)
    client.disconnect()


if __name__ == "__main__":
    role, at, service, times = sys.argv[1:]
    {"server": serve, "client": ping}[role](at, service, int(times))
