"""Fair timing: the contenders take turns, every turn is long enough, the best turn counts.

Taking turns (A B C A B C ...) spreads whatever else the machine does over all of them, and the best of many
turns is the one that was disturbed least.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

Hit = Callable[[], bool]
AsyncHit = Callable[[], Awaitable[bool]]
Turn = Callable[[int], float]  # so many hits; the seconds they took
Opener = Callable[[Path], AbstractContextManager[Turn]]

TURN_SECONDS = 0.06
WARM_UP = 50


@dataclass(frozen=True)
class Contender:
    """`open` gets an empty folder. `hits` in one turn; 0 for as many as fill a turn."""

    name: str
    open: Opener
    hits: int = 0
    note: str = ""


@dataclass
class Timing:
    name: str
    note: str = ""
    hits: int = 0
    seconds_per_hit: list[float] = field(default_factory=list)

    @property
    def best_us(self) -> float:
        return min(self.seconds_per_hit) * 1e6

    @property
    def median_us(self) -> float:
        return median(self.seconds_per_hit) * 1e6


def measure(
    contenders: Sequence[Contender],
    rounds: int,
    *,
    fresh: bool = True,
    turn_seconds: float = TURN_SECONDS,
    warm_up: int = WARM_UP,
) -> list[Timing]:
    """`fresh`: every turn opens its contender anew, so that none carries the load of its earlier turns."""
    timings = [Timing(contender.name, contender.note, contender.hits) for contender in contenders]
    with TemporaryDirectory(prefix="headgate-bench-") as folder, ExitStack() as stack:
        opened: list[Turn] = []
        if not fresh:
            opened = [stack.enter_context(_opened(contender, Path(folder), warm_up)) for contender in contenders]
        for _ in range(rounds):
            for index, (contender, timing) in enumerate(zip(contenders, timings)):
                with ExitStack() as turn_stack:
                    ready = _opened(contender, Path(folder), warm_up)
                    turn = opened[index] if opened else turn_stack.enter_context(ready)
                    timing.hits = timing.hits or _enough_hits(turn, turn_seconds)
                    timing.seconds_per_hit.append(turn(timing.hits) / timing.hits)
    gc.unfreeze()
    return timings


@contextmanager
def _opened(contender: Contender, folder: Path, warm_up: int) -> Iterator[Turn]:
    with TemporaryDirectory(dir=folder) as own, contender.open(Path(own)) as turn:
        turn(warm_up)
        yield turn


def _enough_hits(turn: Turn, turn_seconds: float) -> int:
    hits = WARM_UP
    while (seconds := turn(hits)) < turn_seconds:
        hits = int(hits * min(10, 1.2 * turn_seconds / seconds)) + 1
    return hits


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection while the clock runs; what is there already is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls(hit: Hit) -> Turn:
    def turn(hits: int) -> float:
        with quiet():
            start = time.perf_counter()
            for _ in repeat(None, hits - 1):
                hit()
            admitted = hit()
            seconds = time.perf_counter() - start
        return _checked(admitted, seconds)

    return turn


def calls_with(hit: Callable[[Any], bool], arguments: Callable[[int], Sequence[Any]]) -> Turn:
    """Each hit on another argument; they are made before the clock starts."""

    def turn(hits: int) -> float:
        chosen = arguments(hits)
        with quiet():
            start = time.perf_counter()
            for argument in chosen:
                admitted = hit(argument)
            seconds = time.perf_counter() - start
        return _checked(admitted, seconds)

    return turn


def coroutines(loop: asyncio.AbstractEventLoop, hit: AsyncHit) -> Turn:
    """One task, one hit after the other."""

    async def timed(hits: int) -> float:
        start = time.perf_counter()
        for _ in repeat(None, hits - 1):
            await hit()
        admitted = await hit()
        return _checked(admitted, time.perf_counter() - start)

    def turn(hits: int) -> float:
        with quiet():
            return to_the_end(loop, timed(hits))

    return turn


def tasks(loop: asyncio.AbstractEventLoop, hits_of_tasks: Sequence[AsyncHit]) -> Turn:
    """As many tasks at once as there are hits given, each doing its share."""

    async def share(hit: AsyncHit, hits: int) -> bool:
        for _ in repeat(None, hits - 1):
            await hit()
        return await hit()

    async def timed(hits: int) -> float:
        each = -(-hits // len(hits_of_tasks))
        start = time.perf_counter()
        admitted = await asyncio.gather(*[share(hit, each) for hit in hits_of_tasks])
        seconds = time.perf_counter() - start
        return _checked(all(admitted), seconds * hits / (each * len(hits_of_tasks)))

    def turn(hits: int) -> float:
        with quiet():
            return to_the_end(loop, timed(hits))

    return turn


def to_the_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, float]) -> float:
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        # Nobody hits a limiter that is closed. (A task that the interrupt itself ended must not be waited for.)
        if task.cancel():
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        raise


def threads(hits_of_threads: Sequence[Hit]) -> Turn:
    """As many threads at once as there are hits given, each doing its share."""

    def turn(hits: int) -> float:
        each = -(-hits // len(hits_of_threads))
        admitted: list[bool] = []
        ready = threading.Barrier(len(hits_of_threads) + 1)

        def share(hit: Hit) -> None:
            ready.wait()
            for _ in repeat(None, each - 1):
                hit()
            admitted.append(hit())

        workers = [threading.Thread(target=share, args=(hit,), daemon=True) for hit in hits_of_threads]
        with quiet():
            for worker in workers:
                worker.start()
            try:
                ready.wait()
                start = time.perf_counter()
            finally:
                # Interrupted or not, nobody hits a limiter that is closed.
                for worker in workers:
                    worker.join()
            seconds = time.perf_counter() - start
        complete = len(admitted) == len(workers) and all(admitted)
        return _checked(complete, seconds * hits / (each * len(workers)))

    return turn


def _checked(admitted: bool, seconds: float) -> float:
    if not admitted:
        raise RuntimeError("a hit was refused: a benchmark of refusals would measure something else")
    return seconds
