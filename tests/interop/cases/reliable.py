"""RC: every operation, size, path MTU and address family, each end asking and answering."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.ends import EMULATOR, RXE, Ends, Pair, Renewed, Side, Wiring, all_wirings
from tests.interop.report import Report, require

SIZES = (0, 1, 3, 1023, 1024, 1025, 4096, 65_537, 1 << 20)
PATIENCE_S = 20.0
SUCCESS = 0
WITH_IMM = 1 << 1
WITH_INV = {EMULATOR: 1 << 3, RXE: 1 << 2}
"""Flags of a work completion, as in verbs.h; soft-RoCE hands out the kernel's own number."""


def run(ends: Ends, report: Report) -> None:
    """All cells of this part."""
    for wiring in all_wirings():
        renewed = Renewed(ends, wiring)
        for name, operation in SIZED.items():
            for nbytes in SIZES:
                cell = report.cell(name, wiring.setting, wiring.direction, nbytes)
                with cell, renewed.pair() as pair:
                    operation(pair, nbytes)
        for name, atomic in ATOMICS.items():
            with report.cell(name, wiring.setting, wiring.direction, 8), renewed.pair() as pair:
                atomic(pair)
        renewed.close()


def seed_of(pair: Pair, nbytes: int) -> int:
    """Another content for every connection and size."""
    return int(pair.requester.facts["qpn"]) << 24 | nbytes


def complete(side: Side, nbytes: int | None = None, within_s: float = PATIENCE_S) -> dict[str, int]:
    """The side's next completion, which must be a success."""
    found = side.do("completions", count=1, within_s=within_s)
    require(found, f"no completion at {side.remote.name} within {within_s:.0f} s")
    completion: dict[str, int] = found[0]
    status = completion["status"]
    require(status == SUCCESS, f"{side.remote.name} completes with status {status}")
    if nbytes is not None:
        got = completion["byte_len"]
        require(got == nbytes, f"{side.remote.name} was given {got} bytes and not {nbytes}")
    return completion


def require_content(side: Side, nbytes: int, seed: int, offset: int = 0) -> None:
    """The right bytes, and none behind them changed."""
    wrong = side.do("differences", nbytes=nbytes, seed=seed, offset=offset)
    require(not wrong, f"at {side.remote.name}: {wrong}")


def require_immediate(completion: dict[str, int], nbytes: int) -> None:
    """The number that the endpoint sends with a message of that size."""
    require(completion["flags"] & WITH_IMM, "the completion has no immediate data")
    got, wanted = completion["imm"], nbytes ^ 0xA5A5A5
    require(got == wanted, f"immediate data is {got:#x} and not {wanted:#x}")


def _send(pair: Pair, nbytes: int, operation: str, invalidate: int = 0) -> dict[str, int]:
    """A message into a posted receive; the receiver's completion."""
    seed = seed_of(pair, nbytes)
    pair.responder.do("blank", nbytes=nbytes)
    pair.responder.do("post_recv", nbytes=max(nbytes, 16))
    pair.requester.do("fill", nbytes=nbytes, seed=seed)
    pair.requester.do("post_send", operation=operation, nbytes=nbytes, invalidate=invalidate)
    received = complete(pair.responder, nbytes)
    complete(pair.requester)
    require_content(pair.responder, nbytes, seed)
    return received


def send(pair: Pair, nbytes: int) -> None:
    """SEND."""
    _send(pair, nbytes, "send")


def send_with_immediate(pair: Pair, nbytes: int) -> None:
    """SEND with immediate data."""
    require_immediate(_send(pair, nbytes, "send_imm"), nbytes)


def send_with_invalidate(pair: Pair, nbytes: int) -> None:
    """SEND that ends a type 2 window at the responder."""
    key = pair.responder.do("bind_window", nbytes=4096)
    try:
        received = _send(pair, nbytes, "send_inv", invalidate=key)
    finally:
        pair.responder.do("drop_window")
    flag = WITH_INV[pair.responder.remote.name]
    require(received["flags"] & flag, "the completion names no invalidated key")
    require(received["raw_imm"] == key, f"invalidated is {received['raw_imm']:#x}, not {key:#x}")


def write(pair: Pair, nbytes: int) -> None:
    """RDMA WRITE."""
    seed = seed_of(pair, nbytes)
    pair.responder.do("blank", nbytes=nbytes)
    pair.requester.do("fill", nbytes=nbytes, seed=seed)
    pair.requester.do("post_send", operation="write", nbytes=nbytes)
    complete(pair.requester)
    require_content(pair.responder, nbytes, seed)


def write_with_immediate(pair: Pair, nbytes: int) -> None:
    """RDMA WRITE with immediate data."""
    seed = seed_of(pair, nbytes)
    pair.responder.do("blank", nbytes=nbytes)
    pair.responder.do("post_recv", nbytes=0)
    pair.requester.do("fill", nbytes=nbytes, seed=seed)
    pair.requester.do("post_send", operation="write_imm", nbytes=nbytes)
    require_immediate(complete(pair.responder, nbytes), nbytes)
    complete(pair.requester)
    require_content(pair.responder, nbytes, seed)


def read(pair: Pair, nbytes: int) -> None:
    """RDMA READ."""
    seed = seed_of(pair, nbytes)
    pair.responder.do("fill", nbytes=nbytes, seed=seed)
    pair.requester.do("blank", nbytes=nbytes)
    pair.requester.do("post_send", operation="read", nbytes=nbytes)
    complete(pair.requester)
    require_content(pair.requester, nbytes, seed)


BEFORE, OPERAND = 0x0123456789ABCDEF, 0xFEDCBA98


def _atomic(pair: Pair, operation: str, operands: tuple[int, int], after: int) -> None:
    pair.responder.do("word", value=BEFORE)
    pair.requester.do("word", value=0)
    pair.requester.do("post_send", operation=operation, nbytes=8, operands=operands)
    complete(pair.requester)
    got = pair.requester.do("word")
    require(got == BEFORE, f"the word before was {BEFORE:#x}, told was {got:#x}")
    now = pair.responder.do("word")
    require(now == after, f"the word is now {now:#x} and not {after:#x}")


def compare_and_swap(pair: Pair) -> None:
    """Once with the value that is there, once with another, which must change nothing."""
    _atomic(pair, "swap", (BEFORE, OPERAND), OPERAND)
    _atomic(pair, "swap", (BEFORE + 1, OPERAND), BEFORE)


def fetch_and_add(pair: Pair) -> None:
    """With a carry over all bytes."""
    _atomic(pair, "add", (OPERAND, 0), BEFORE + OPERAND)


SIZED: dict[str, Callable[[Pair, int], None]] = {
    "SEND": send,
    "SEND immediate": send_with_immediate,
    "SEND invalidate": send_with_invalidate,
    "WRITE": write,
    "WRITE immediate": write_with_immediate,
    "READ": read,
}
ATOMICS: dict[str, Callable[[Pair], None]] = {
    "compare-and-swap": compare_and_swap,
    "fetch-and-add": fetch_and_add,
}


def wiring_for_one(requester: str, family: str = "ipv4", mtu: int = 1024) -> Wiring:
    """A connection for cases that need no more than one for each direction."""
    return Wiring(requester, family, mtu)
