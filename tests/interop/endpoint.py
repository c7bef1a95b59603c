"""One end of the wire: a pyverbs program that does what it is told over TCP.

The same file runs in the guest, on Debian's pyverbs and soft-RoCE, and outside on the drop-in
of the emulator; so it needs nothing but pyverbs. Requests and answers are lines of JSON:
``{"do": NAME, "with": {...}}``, then ``{"result": ...}`` or ``{"error": TEXT}``.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import random
import socket
import subprocess
import sys
import time
import traceback
from typing import Any

from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

try:  # pyverbs 44
    v: Any = importlib.import_module("pyverbs.enums")
except ImportError:
    v = importlib.import_module("pyverbs.libibverbs_enums")

PORT = 1
GIDS = 8
"""As many as are looked at: soft-RoCE's table has a thousand entries, nearly all empty."""
GRH_BYTES = 40
GUARD = b"\xee"
GUARD_BYTES = 64
MAX_MESSAGE_BYTES = 1 << 20
BUFFER_BYTES = GRH_BYTES + MAX_MESSAGE_BYTES + GUARD_BYTES
QKEY = 0x1234567
POLL_INTERVAL_S = 0.0005
"""Between polls: a guest with one processor does its network's work meanwhile."""
GID_LOOKS = {"ipv4": "0000:0000:0000:0000:0000:ffff:", "ipv6": "fd77:"}
ACCESS = (
    v.IBV_ACCESS_LOCAL_WRITE
    | v.IBV_ACCESS_REMOTE_WRITE
    | v.IBV_ACCESS_REMOTE_READ
    | v.IBV_ACCESS_REMOTE_ATOMIC
    | v.IBV_ACCESS_MW_BIND
)
OPCODES = {
    "send": v.IBV_WR_SEND,
    "send_imm": v.IBV_WR_SEND_WITH_IMM,
    "send_inv": v.IBV_WR_SEND_WITH_INV,
    "write": v.IBV_WR_RDMA_WRITE,
    "write_imm": v.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": v.IBV_WR_RDMA_READ,
    "swap": v.IBV_WR_ATOMIC_CMP_AND_SWP,
    "add": v.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
MTUS = {256: v.IBV_MTU_256, 1024: v.IBV_MTU_1024, 4096: v.IBV_MTU_4096}


class Connection:
    """A queue pair with its completion queue and one registered buffer."""

    def __init__(self, device: Any, pd: Any, gid_index: int, kind: str) -> None:
        self.kind = kind
        self.gid_index = gid_index
        self.pd = pd
        self.cq = CQ(device, 64)
        cap = QPCap(max_send_wr=32, max_recv_wr=32, max_send_sge=1, max_recv_sge=1)
        qp_type = v.IBV_QPT_UD if kind == "ud" else v.IBV_QPT_RC
        init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap)
        self.memory = ctypes.create_string_buffer(BUFFER_BYTES + 8)
        # Atomics want eight bytes' alignment, which ctypes does not promise.
        self.address = -(-ctypes.addressof(self.memory) // 8) * 8
        self.bytes = memoryview((ctypes.c_ubyte * BUFFER_BYTES).from_address(self.address)).cast(
            "B"
        )
        self.mr = MR(pd, BUFFER_BYTES, ACCESS, address=self.address)
        self.psn = random.SystemRandom().randrange(1 << 24)
        attributes = QPAttr(port_num=PORT)
        if kind == "ud":
            attributes.qkey = QKEY
            self.qp = QP(pd, init, attributes)
        else:
            self.qp = QP(pd, init)
            attributes.qp_access_flags = ACCESS
            self.qp.to_init(attributes)
        self.ah: Any = None
        self.window: Any = None
        self.remote: dict[str, Any] = {}

    def connect(self, remote: dict[str, Any], path_mtu: int, timers: dict[str, int]) -> None:
        """INIT to RTS; for a datagram queue pair, the handle of the other's address."""
        self.remote = remote
        route = GlobalRoute(dgid=GID(remote["gid"]), sgid_index=self.gid_index)
        route.hop_limit = 64
        handle = AHAttr(gr=route, is_global=1, port_num=PORT)
        if self.kind == "ud":
            self.ah = AH(self.pd, attr=handle)
            return
        attributes = QPAttr(port_num=PORT)
        attributes.ah_attr = handle
        attributes.path_mtu = MTUS[path_mtu]
        attributes.dest_qp_num = remote["qpn"]
        attributes.rq_psn, attributes.sq_psn = remote["psn"], self.psn
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4
        for name, value in timers.items():
            setattr(attributes, name, value)
        self.qp.to_rts(attributes)

    def close(self) -> None:
        """In the order that real verbs ask for."""
        for thing in (self.window, self.qp, self.ah, self.mr, self.cq):
            if thing is not None:
                thing.close()


class Endpoint:
    """Public methods are what the other side of the TCP connection may ask for."""

    def __init__(self) -> None:
        self._device: Any = None
        self._pd: Any = None
        self._connections: dict[int, Connection] = {}
        self._programs: dict[int, subprocess.Popen[str]] = {}
        self._next = 1

    def open(self, gid_wait_s: float = 15.0) -> dict[str, Any]:
        """Open the first device; addresses of a new interface take a moment to become GIDs."""
        name = get_device_list()[0].name.decode()
        self._device = Context(name=name)
        self._pd = PD(self._device)
        end = time.monotonic() + gid_wait_s
        while not self._has_all_gids():
            if time.monotonic() > end:
                raise RuntimeError(f"{name} lacks the GID of an address: {self._gids()}")
            time.sleep(0.05)
        attributes = self._device.query_port(PORT)
        return {"device": name, "gids": self._gids(), "active_mtu": attributes.active_mtu}

    def _has_all_gids(self) -> bool:
        gids = self._gids()
        return all(any(gid.startswith(look) for gid in gids) for look in GID_LOOKS.values())

    def _gids(self) -> list[str]:
        """The first entries of the table; where it is empty, there are zeros."""
        size = min(GIDS, self._device.query_port(PORT).gid_tbl_len)
        return [str(self._device.query_gid(PORT, index)) for index in range(size)]

    def create(self, kind: str, family: str) -> dict[str, Any]:
        """A queue pair in INIT; what the other side must know of it."""
        gids = self._gids()
        index = next(i for i, gid in enumerate(gids) if gid.startswith(GID_LOOKS[family]))
        connection = Connection(self._device, self._pd, index, kind)
        number, self._next = self._next, self._next + 1
        self._connections[number] = connection
        return {
            "id": number,
            "gid": gids[index],
            "qpn": connection.qp.qp_num,
            "psn": connection.psn,
            "address": connection.address,
            "rkey": connection.mr.rkey,
        }

    def connect(
        self, qp: int, remote: dict[str, Any], path_mtu: int, timers: dict[str, int]
    ) -> None:
        """To RTS."""
        self._connections[qp].connect(remote, path_mtu, timers)

    def close(self, qp: int) -> None:
        """Destroy a connection and its memory."""
        self._connections.pop(qp).close()

    def fill(self, qp: int, nbytes: int, seed: int, offset: int = 0) -> None:
        """Put content there that the seed decides."""
        content = random.Random(seed).randbytes(nbytes)
        self._connections[qp].bytes[offset : offset + nbytes] = content

    def blank(self, qp: int, nbytes: int) -> None:
        """Make the first bytes, and the guard behind them, something else than any content."""
        end = GRH_BYTES + nbytes + GUARD_BYTES
        self._connections[qp].bytes[:end] = GUARD * end

    def differences(self, qp: int, nbytes: int, seed: int, offset: int = 0) -> str:
        """What is wrong with the bytes that arrived; empty when nothing is."""
        memory = self._connections[qp].bytes
        wanted = random.Random(seed).randbytes(nbytes)
        got = bytes(memory[offset : offset + nbytes])
        if got != wanted:
            first = next(i for i in range(nbytes) if got[i] != wanted[i])
            return f"byte {first} of {nbytes} is {got[first]:#x} and not {wanted[first]:#x}"
        after = bytes(memory[offset + nbytes : offset + nbytes + GUARD_BYTES])
        return "" if after == GUARD * GUARD_BYTES else "bytes behind the message have changed"

    def word(self, qp: int, value: int | None = None) -> int:
        """The first eight bytes as a host's number, after setting them if a value is given."""
        memory = self._connections[qp].bytes
        if value is not None:
            memory[:8] = value.to_bytes(8, sys.byteorder)
        return int.from_bytes(memory[:8], sys.byteorder)

    def post_recv(self, qp: int, nbytes: int, wr_id: int = 0) -> None:
        """One receive into the start of the buffer."""
        connection = self._connections[qp]
        element = SGE(connection.address, nbytes, connection.mr.lkey)
        connection.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[element]))

    def post_send(
        self,
        qp: int,
        operation: str,
        nbytes: int,
        rkey: int | None = None,
        invalidate: int = 0,
        operands: tuple[int, int] = (0, 0),
        wr_id: int = 0,
    ) -> None:
        """One signaled request on the start of the buffer, to the start of the other's."""
        connection = self._connections[qp]
        element = SGE(connection.address, nbytes, connection.mr.lkey)
        request = SendWR(
            wr_id=wr_id,
            opcode=OPCODES[operation],
            num_sge=1,
            sg=[element],
            send_flags=v.IBV_SEND_SIGNALED,
        )
        key = connection.remote["rkey"] if rkey is None else rkey
        if operation in ("send_imm", "write_imm"):
            request.imm_data = socket.htonl(nbytes ^ 0xA5A5A5)
        if operation == "send_inv":
            request.imm_data = invalidate  # the same word of the work request
        if operation in ("write", "write_imm", "read"):
            request.set_wr_rdma(key, connection.remote["address"])
        if operation in ("swap", "add"):
            request.set_wr_atomic(key, connection.remote["address"], *operands)
        if connection.kind == "ud":
            request.set_wr_ud(connection.ah, connection.remote["qpn"], QKEY)
        connection.qp.post_send(request)

    def completions(self, qp: int, count: int, within_s: float) -> list[dict[str, int]]:
        """The next completions, fewer when they do not come in time."""
        connection, found = self._connections[qp], []
        end = time.monotonic() + within_s
        while len(found) < count:
            polled, some = connection.cq.poll(count - len(found))
            for wc in some[:polled]:
                found.append(
                    {
                        "wr_id": wc.wr_id,
                        "status": int(wc.status),
                        "opcode": int(wc.opcode),
                        "byte_len": wc.byte_len,
                        "imm": socket.ntohl(wc.imm_data),
                        "raw_imm": wc.imm_data,
                        "flags": int(wc.wc_flags),
                    }
                )
            if not polled:
                if time.monotonic() > end:
                    break
                time.sleep(POLL_INTERVAL_S)
        return found

    def bind_window(self, qp: int, nbytes: int) -> int:
        """Bind a type 2 window over the start of the buffer; its key."""
        connection = self._connections[qp]
        connection.window = MW(self._pd, v.IBV_MW_TYPE_2)
        access = v.IBV_ACCESS_REMOTE_WRITE | v.IBV_ACCESS_REMOTE_READ
        info = MWBindInfo(connection.mr, connection.address, nbytes, access)
        request = SendWR(opcode=v.IBV_WR_BIND_MW, send_flags=v.IBV_SEND_SIGNALED)
        request.set_bind_wr(connection.window, info)
        connection.qp.post_send(request)
        done = self.completions(qp, 1, 5.0)
        if not done or done[0]["status"]:
            raise RuntimeError(f"the window is not bound: {done}")
        return int(request.rkey)

    def drop_window(self, qp: int) -> None:
        """Deallocate the connection's window."""
        connection = self._connections[qp]
        connection.window.close()
        connection.window = None

    def start(self, words: list[str]) -> int:
        """Start a program beside this one; a number for it."""
        number, self._next = self._next, self._next + 1
        self._programs[number] = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return number

    def is_running(self, program: int) -> bool:
        """Whether a program has not ended yet."""
        return self._programs[program].poll() is None

    def finish(self, program: int, within_s: float) -> dict[str, Any]:
        """Wait for a program, kill it when it takes too long; its status and what it printed."""
        process = self._programs.pop(program)
        try:
            output, _ = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        return {"status": process.returncode, "output": output}


def serve(endpoint: Endpoint, host: str, port: int) -> None:
    """Do what comes over the connection until it ends."""
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rw", encoding="utf-8", newline="\n")
        for line in stream:
            request = json.loads(line)
            try:
                answer = {"result": getattr(endpoint, request["do"])(**request["with"])}
            except Exception:
                answer = {"error": traceback.format_exc(limit=-3)}
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


if __name__ == "__main__":
    serve(Endpoint(), sys.argv[1], int(sys.argv[2]))
