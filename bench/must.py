"""The goals, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .run import Result


class Goal(NamedTuple):
    text: str
    measured: float
    wanted: float
    at_most: bool

    @property
    def reached(self) -> bool:
        if self.at_most:
            return self.measured <= self.wanted
        return self.measured > self.wanted if self.wanted == 1 else self.measured >= self.wanted

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least" if self.wanted > 1 else "more than"
        return f"{self.text}: {self.measured:.2f}x ({bound} {self.wanted:g}x)"


def goals(result: Result) -> Iterator[Goal]:
    times = {section: {row["name"]: row["best_us"] for row in rows} for section, rows in result["times"].items()}
    if "memory" in times:
        ours = times["memory"]["headgate try_acquire"]
        peers = {name: best for name, best in times["memory"].items() if not name.startswith("headgate")}
        fastest = min(peers, key=peers.__getitem__)
        yield Goal(f"memory: faster than the fastest peer, {fastest}", peers[fastest] / ours, 1, False)
    if "sqlite" in times:
        ours, locked, unlocked = times["sqlite"].values()
        yield Goal("sqlite: against pyrate's SQLite bucket as its README makes it", unlocked / ours, 20, False)
        yield Goal("sqlite: against the same with its file lock, for many processes", locked / ours, 20, False)
    if "threads" in times:
        one, each, shared, *_ = times["threads"].values()
        yield Goal("sqlite: 16 threads, a key each, against one thread", one / each, 2, False)
        yield Goal("sqlite: 16 threads, one key, against one thread", one / shared, 2, False)
    for store in ("memory", "sqlite"):
        for kind, wanted in (("entities", 1.5), ("limits", 6)):
            rows = result["times"].get(f"{kind}, {store}")
            if rows:
                yield Goal(f"{store}: {rows[-1]['name']} against 1", rows[-1]["ratio"], wanted, True)
