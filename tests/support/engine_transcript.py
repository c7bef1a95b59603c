"""Everything that an engine says, as text: to compare compiled kernels with plain ones.

``python -m tests.support.engine_transcript KIND SEED COUNT`` prints it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from typing import Any

from tests.support.bad_link import Odds
from tests.support.fuzz_world import FuzzWorld
from tests.support.rc_workload import Plan, RcWorkload
from tests.support.roce_pair import Frame, Port, Region

FUZZ, WORKLOAD = "fuzz", "workload"
_FRAME_FIELDS = ("src_port", "dst_port", "tos", "ip_frag", "flow_label", "dst_hi", "dst_lo")


def transcript(kind: str, seed: int, count: int) -> list[str]:
    """``count`` frames thrown at an engine, or ``count`` operations each way of two."""
    return _fuzz(seed, count) if kind == FUZZ else _workload(seed, count)


def _fuzz(seed: int, count: int) -> list[str]:
    world = FuzzWorld(seed)
    lines = []
    for _ in range(count):
        frame = world.next_frame()
        lines.append(f"> {_frame(frame)}")
        lines += [f"< {_frame(answer)}" for answer in world.throw(frame)]
        lines += _completions(world.port)
    return lines + _end(world.port, [*world.regions, world.inbox])


def _workload(seed: int, count: int) -> list[str]:
    odds = Odds(0.05, 0.05, 0.05, 0.05, 0.05)
    plan = Plan(seed, odds, mtu=256, operations=count, connections=2, shared=bool(seed % 2))
    workload = RcWorkload(plan)
    pair = workload.pair
    lines: list[str] = []
    for name, sign in (("to_b", ">"), ("to_a", "<")):
        setattr(pair, name, _recorded(getattr(pair, name), sign, lines))
    workload.build()
    workload.run()
    for port in (pair.a, pair.b):
        lines += map(_completion, workload.completions[id(port)])
    regions = [region for flow in workload.flows for region in (flow.local, flow.remote)]
    return lines + _end(pair.a, regions) + _end(pair.b, [])


def _recorded(channel: Any, sign: str, lines: list[str]) -> Any:
    def record(frames: list[Frame]) -> list[Frame]:
        lines.extend(f"{sign} {_frame(frame)}" for frame in frames)
        return channel(frames)  # type: ignore[no-any-return]

    return record


def _frame(frame: Frame) -> str:
    payload, descriptor = frame
    fields = " ".join(f"{name}={int(descriptor[name])}" for name in _FRAME_FIELDS)
    return f"{payload.hex()} {fields}"


def _completions(port: Port) -> Iterable[str]:
    return map(_completion, port.poll())


def _completion(wc: Any) -> str:
    return "wc " + " ".join(f"{name}={int(wc[name])}" for name in wc.dtype.names)


def _end(port: Port, regions: list[Region]) -> list[str]:
    """What is left in the end: counters, events, deadline, memory."""
    lines = [f"{name} {value}" for name, value in port.engine.counters().items()]
    lines += [f"event {event.event.name} {event.subject}" for event in port.engine.take_events()]
    lines.append(f"deadline {port.engine.next_deadline()}")
    lines += [f"memory {hashlib.sha256(region.data.tobytes()).hexdigest()}" for region in regions]
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(transcript(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
