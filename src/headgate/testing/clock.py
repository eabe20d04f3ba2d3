"""A clock that moves when told to."""

from __future__ import annotations

import asyncio
import threading


class ManualClock:
    """Give it to a limiter, then `advance(seconds)` or `set(now_ms)`, backwards too.

    Whoever waits on it (`acquire(max_wait=...)`) wakes when the clock gets there, at the latest after the wait
    in real time.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._moved = threading.Condition()
        self._sleepers: dict[asyncio.Future[None], tuple[int, asyncio.AbstractEventLoop]] = {}

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self.set(self._now_ms + round(seconds * 1000))

    def set(self, now_ms: int) -> None:
        with self._moved:
            self._now_ms = now_ms
            self._moved.notify_all()
            for sleeper, (until_ms, loop) in list(self._sleepers.items()):
                if until_ms <= now_ms:
                    del self._sleepers[sleeper]
                    loop.call_soon_threadsafe(_wake, sleeper)

    def sleep(self, seconds: float) -> None:
        until_ms = self._now_ms + round(seconds * 1000)
        with self._moved:
            self._moved.wait_for(lambda: self._now_ms >= until_ms, seconds)

    async def asleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        with self._moved:
            self._sleepers[sleeper] = (self._now_ms + round(seconds * 1000), loop)
        try:
            await asyncio.wait_for(sleeper, seconds)
        except asyncio.TimeoutError:
            pass
        finally:
            self._sleepers.pop(sleeper, None)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
