"""What the workers of one service share: a folder with the counts of each, the sessions, and a mark of changes.

A worker has a number, and its files are named after it. One that takes the place of a dead worker has the same number,
and its counts go on from those. So there are never more files than workers, and no counter ever falls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from .reload import Stamp, stamp_of
from .ui.live import LiveCounts, merged

WRITE_SECONDS = 1.0
_COUNTS = ".counts"
_LEAST = "headgate_last_reload_successful"  # 1 only if it is 1 in every worker
_CREATED = "_created"


class Sample(msgspec.Struct, array_like=True):
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(msgspec.Struct, array_like=True):
    """The samples of a metric."""

    name: str
    words: str
    kind: str
    samples: list[Sample]


class LimiterState(msgspec.Struct, array_like=True):
    """What is shown of a limiter as it is at the moment."""

    breaker: str
    waiters: int
    leases: int


class WorkerCounts(msgspec.Struct, array_like=True):
    """What a worker has counted in a namespace. `live`: None without a dashboard. `state`: None if it has died."""

    families: list[Family]
    live: LiveCounts | None
    state: LimiterState | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WorkerCounts)


class SharedFolder:
    """The folder, as the worker with this number uses it."""

    def __init__(self, folder: str, number: int) -> None:
        self.path = Path(folder)
        self._number = number
        self._before: dict[str, WorkerCounts | None] = {}
        self._changes: Stamp = None

    def write(self, namespace: str, own: WorkerCounts) -> WorkerCounts:
        """Write what this worker has counted, together with those before it."""
        path = self.path / f"{_name(namespace)}-{self._number}{_COUNTS}"
        if namespace not in self._before:
            self._before[namespace] = _without_state(_read(path))
        before = self._before[namespace]
        counts = own if before is None else _joined(before, own)
        put_file(path, _encoder.encode(counts))
        return counts

    def of_all(self, namespace: str, own: WorkerCounts) -> list[WorkerCounts]:
        """The counts of all workers. Those of the others are up to a second old.

        Its own are written first: what was shown once must be there when this worker has died.
        """
        mine = self.write(namespace, own)
        others = self.path.glob(f"{_name(namespace)}-*{_COUNTS}")
        found = [_read(path) for path in others if path.stem.rpartition("-")[2] != str(self._number)]
        return [mine, *(counts for counts in found if counts is not None)]

    # Changes of limits and entities

    def tell_change(self) -> None:
        put_file(self.path / "changed", token_hex(8).encode(), f"-{self._number}")

    def was_changed(self) -> bool:
        """Whether any worker has made a change since the last call."""
        before, self._changes = self._changes, stamp_of(self.path / "changed")
        return self._changes != before


def bury(folder: str, number: int) -> None:
    """Keep the counts of a worker that has died, but not its gauges."""
    for path in Path(folder).glob(f"*-{number}{_COUNTS}"):
        counts = _without_state(_read(path))
        if counts is not None:
            put_file(path, _encoder.encode(counts))


def exposition(pages: Iterable[Sequence[Family]]) -> bytes:
    """The sum of the pages, as text for Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Sum(_added(pages)))
    return generate_latest(registry)


class _Sum(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.words, family.kind)
            for one in family.samples:
                metric.add_sample(one.name, dict(one.labels), one.value)
            yield metric


def _added(pages: Iterable[Sequence[Family]]) -> list[Family]:
    found: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    kinds: dict[str, Family] = {}
    for family in (family for page in pages for family in page):
        kinds.setdefault(family.name, family)
        values = found.setdefault(family.name, {})
        for one in family.samples:
            place = one.name, one.labels
            before = values.get(place)
            if before is None:
                values[place] = one.value
            elif one.name == _LEAST or one.name.endswith(_CREATED):
                values[place] = min(before, one.value)
            else:
                values[place] = before + one.value
    return [
        Family(name, kinds[name].words, kinds[name].kind, [Sample(*place, value) for place, value in values.items()])
        for name, values in found.items()
    ]


def _joined(before: WorkerCounts, own: WorkerCounts) -> WorkerCounts:
    live = own.live if before.live is None or own.live is None else merged([before.live, own.live])
    return WorkerCounts(_added([before.families, own.families]), live, own.state)


def _without_state(counts: WorkerCounts | None) -> WorkerCounts | None:
    if counts is None:
        return None
    return WorkerCounts([family for family in counts.families if family.kind != "gauge"], counts.live, None)


def _name(namespace: str) -> str:
    return sha256(namespace.encode()).hexdigest()[:32]


def _read(path: Path) -> WorkerCounts | None:
    try:
        return _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None


def put_file(path: Path, data: bytes, part: str = "") -> None:
    """Write a file that no reader ever sees half."""
    half = path.with_name(f"{path.name}{part}.part")
    half.write_bytes(data)
    os.replace(half, path)
