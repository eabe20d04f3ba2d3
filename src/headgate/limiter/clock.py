"""Reading the time, and passing it."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import Protocol

_boot_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic
GLANCE_SECONDS = 0.02  # how often to look at a clock that may be set at any moment


class Clock(Protocol):
    """Anything with `now_ms()`. If it has `sleep` and `asleep` too, waiting is left to them."""

    def now_ms(self) -> int: ...


def boot_ms() -> float:
    """Milliseconds that are not set back. A machine that was suspended has to find that time has passed."""
    return _boot_seconds() * 1000


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def sleep_on(clock: Clock, seconds: float) -> None:
    getattr(clock, "sleep", time.sleep)(seconds)


async def asleep_on(clock: Clock, seconds: float) -> None:
    await getattr(clock, "asleep", asyncio.sleep)(seconds)


async def rings(bell: asyncio.Event, seconds: float) -> None:
    """Wait until it rings, at most so long. asyncio.wait_for would not do: before Python 3.12 it loses a cancellation
    that comes together with the ring, and the cancelled task goes on."""
    ringing = asyncio.ensure_future(bell.wait())
    try:
        await asyncio.wait([ringing], timeout=seconds)
    finally:
        ringing.cancel()
