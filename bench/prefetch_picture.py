"""The picture of docs/prefetch.md, of calls to a Redis server: python -m bench.prefetch_picture"""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from headgate import RateLimiter
from headgate.testing.servers.redis import RedisServer

from .ours import one_limit
from .peers import KEY
from .picture import OURS, TEXT, THEIRS
from .prefetch_scenes import PREFETCH

IMAGE = Path("docs/images/prefetch.svg")
SECONDS, BUSIEST = 12.0, 1000
BIN = 0.25


class Times:
    """A Watcher that keeps when the store was called."""

    def __init__(self, start: float) -> None:
        self._start = start
        self.calls: list[float] = []

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        pass

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self.calls.append(time.perf_counter() - self._start)


def acquires_a_second(at: float) -> float:
    """Quiet at first, busy in the middle, and quiet again."""
    return 4 + (BUSIEST - 4) * math.sin(math.pi * min(max((at - 2) / (SECONDS - 4), 0.0), 1.0)) ** 2


async def measured(url: str, prefetch: float) -> tuple[list[float], list[float]]:
    """When one task acquired, and when the store was called."""
    acquired = []
    async with RateLimiter(url, prefetch=prefetch) as limiter:
        await limiter.set_system_defaults(one_limit())
        await limiter.try_acquire(KEY, "api", {"requests": 1})
        start = time.perf_counter()
        times = Times(start)
        limiter.watch(times)
        due = 0.0
        while due < SECONDS:
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            await limiter.try_acquire(KEY, "api", {"requests": 1})
            acquired.append(time.perf_counter() - start)
            due += 1 / acquires_a_second(due)
        limiter.unwatch(times)
    return acquired, times.calls


def per_second(moments: list[float]) -> list[float]:
    counts = [0] * round(SECONDS / BIN)
    for moment in moments:
        counts[min(int(moment / BIN), len(counts) - 1)] += 1
    return [count / BIN for count in counts]


def draw(without: list[float], with_prefetch: list[float], path: Path) -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "headgate", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, axis = pyplot.subplots(figsize=(8.6, 3.4))
    places = [(number + 0.5) * BIN for number in range(len(without))]
    curves = (
        ("without prefetch, one for each acquire", without, THEIRS),
        (f"prefetch={PREFETCH:g}", with_prefetch, OURS),
    )
    for name, heights, colour in curves:
        axis.fill_between(places, heights, color=colour, alpha=0.25, linewidth=0)
        axis.plot(places, heights, color=colour, linewidth=2)
        axis.annotate(
            f"{name} (at most {max(heights):,.0f})",
            (SECONDS / 2, max(heights)),
            (0, 7),
            textcoords="offset points",
            ha="center",
            color=TEXT if colour == THEIRS else OURS,
            fontsize=9.5,
            fontweight="normal" if colour == THEIRS else "bold",
        )
    axis.set_title("Calls to the store a second", loc="left", fontsize=10.5, color=TEXT, pad=12)
    axis.set_xlabel("seconds", color=TEXT, fontsize=9.5)
    axis.set_xlim(0, SECONDS)
    axis.set_ylim(0, max(without) * 1.12)
    axis.grid(axis="y", color=TEXT, alpha=0.2)
    axis.tick_params(length=0, colors=TEXT, labelsize=9)
    for side in axis.spines.values():
        side.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    with RedisServer() as server:
        curves = [asyncio.run(measured(server.url, prefetch)) for prefetch in (0.0, PREFETCH)]
    draw(*(per_second(calls) for _, calls in curves), IMAGE)
    for name, (acquired, calls) in zip(("without", "with"), curves):
        print(f"{name} prefetch: {len(acquired):,} acquires, {len(calls):,} calls to the store")


if __name__ == "__main__":
    main()
