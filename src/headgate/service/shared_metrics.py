"""Metrics of all workers: each writes its own to a folder, and the one that is asked adds them up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

WRITE_SECONDS = 1.0
_LIVE, _DEAD = ".prom", ".dead"
_LEAST = "headgate_last_reload_successful"  # 1 only if it is 1 in every worker
_CREATED = "_created"


class SharedMetrics:
    """The files of one worker in a folder that all of them share. A namespace has a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def write(self, namespace: str, page: bytes) -> None:
        path = self._path(namespace)
        part = path.with_suffix(".part")
        part.write_bytes(page)
        part.replace(path)  # a reader never sees half a file

    def merged(self, namespace: str, own: bytes) -> bytes:
        """The page of this worker and those that the other workers wrote last."""
        mine = self._path(namespace)
        live: list[str] = [own.decode()]
        dead: list[str] = []
        # By worker: while the folder is read, a file may get its other name.
        for worker in {path.with_suffix(_LIVE) for path in self._folder.glob(f"{_name(namespace)}-*")} - {mine}:
            try:
                live.append(worker.read_text())
            except FileNotFoundError:
                with suppress(FileNotFoundError):  # its worker has not written it to the end
                    dead.append(worker.with_suffix(_DEAD).read_text())
        return generate_latest(_Merged(live, dead).registry())

    def _path(self, namespace: str) -> Path:
        return self._folder / f"{_name(namespace)}-{os.getpid()}{_LIVE}"


def mark_dead(folder: str, pid: int) -> None:
    """Keep the counts of a worker that has died, or counters would go back, but not its gauges."""
    for path in Path(folder).glob(f"*-{pid}{_LIVE}"):
        path.replace(path.with_suffix(_DEAD))


def _name(namespace: str) -> str:
    return sha256(namespace.encode()).hexdigest()[:32]


class _Merged(Collector):
    def __init__(self, live: Iterable[str], dead: Iterable[str]) -> None:
        self._families: dict[str, Metric] = {}
        self._values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text in live:
            self._add(text, gauges=True)
        for text in dead:
            self._add(text, gauges=False)

    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def _add(self, text: str, *, gauges: bool) -> None:
        for family in text_string_to_metric_families(text):
            if family.type == "gauge" and not gauges and not family.name.endswith(_CREATED):
                continue
            self._families.setdefault(family.name, family)
            values = self._values.setdefault(family.name, {})
            least = family.name == _LEAST or family.name.endswith(_CREATED)
            for sample in family.samples:
                place = sample.name, tuple(sample.labels.items())
                before = values.get(place)
                values[place] = sample.value if before is None else _joined(before, sample.value, least)

    def collect(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            found = Metric(family.name, family.documentation, family.type)
            for (sample, labels), value in self._values[name].items():
                found.add_sample(sample, dict(labels), value)
            yield found


def _joined(one: float, other: float, least: bool) -> float:
    return min(one, other) if least else one + other
