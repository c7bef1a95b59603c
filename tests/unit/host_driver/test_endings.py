"""Held: a loop hears of every end, of many in one call, and a closed one hurts nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from host_driver.endings import Endings


def test_what_ends_before_the_loop_comes_is_told_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> int:
        loop = asyncio.get_running_loop()
        endings = Endings(loop)
        calls: list[Callable[..., Any]] = []
        threadsafe = loop.call_soon_threadsafe

        def counted(callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
            calls.append(callback)
            return threadsafe(callback, *args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        for _ in range(2):
            futures = [loop.create_future() for _ in range(50)]
            for future in futures:
                endings.tell(future)
            await asyncio.gather(*futures)
        return len(calls)

    assert asyncio.run(run()) == 2


def test_ends_of_another_thread_all_arrive() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        endings = Endings(loop)
        futures = [loop.create_future() for _ in range(2000)]

        def end_all() -> None:
            for future in futures:
                endings.tell(future)

        other = threading.Thread(target=end_all)
        other.start()
        await asyncio.gather(*futures)
        other.join()

    asyncio.run(run())


def test_a_cancelled_call_and_a_closed_loop_are_no_errors() -> None:
    async def run() -> Endings:
        loop = asyncio.get_running_loop()
        endings = Endings(loop)
        cancelled, awaited = loop.create_future(), loop.create_future()
        cancelled.cancel()
        endings.tell(cancelled)
        endings.tell(awaited)
        await awaited
        return endings

    endings = asyncio.run(run())
    endings.tell(endings.loop.create_future())
