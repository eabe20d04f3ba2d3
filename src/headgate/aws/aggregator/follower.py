"""The aggregator as a process that reads the stream itself.

A shard is read after its parent, which keeps the records of an item in order. A record counts as read only when it is
counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import RateLimiterUnavailable
from ...plan import run
from ...stores.dynamodb.deliver import Deliverer
from .batch import Aggregator, Counts, Perform
from .log import log
from .records import moment_of, sequence_of
from .stream import Shard, TableStream, is_checkpoint, load_plan, newest_stream_plan, save_plan

POLL_SECONDS = 1.0
_BETWEEN_EMPTY_READS = 0.05
# An open shard never says that it has no more records, and may return none although it has: so ask this often.
_IDLE_READS = 10
_SHARDS_SECONDS = 30.0
_SAVE_SECONDS = 10.0
_LONGEST_PAUSE = 30.0


class AggregatorProgress(NamedTuple):
    """`shards` are open and being read; `behind_seconds` is the age of the last record, 0 at the end of the stream."""

    counts: Counts
    shards: int
    behind_seconds: float


OnProgress: TypeAlias = Callable[[AggregatorProgress], None]


class Follower:
    """`run` it; `stop` it from a signal handler or another thread."""

    def __init__(
        self,
        aggregator: Aggregator,
        stream: TableStream,
        deliverer: Deliverer,
        perform: Perform,
        *,
        poll_seconds: float = POLL_SECONDS,
        report: OnProgress = lambda progress: None,
    ) -> None:
        self._aggregator = aggregator
        self._stream = stream
        self._deliverer = deliverer
        self._perform = perform
        self._poll_seconds = poll_seconds
        self._report = report
        self._stopped = threading.Event()
        self._shards: dict[str, Shard] = {}
        self._counts = Counts()
        self._until = 0
        self._latest: int | None = None
        self._looked = self._saved = float("-inf")

    def stop(self) -> None:
        """The current batch is finished first."""
        self._stopped.set()

    def run(self, once: bool = False) -> Counts:
        """Until it is stopped; with `once`, until all records from before the start are read."""
        pause = self._poll_seconds
        try:
            while not self._stopped.is_set():
                try:
                    busy = self._round(once)
                except RateLimiterUnavailable as error:
                    if once:
                        raise
                    log(logging.WARNING, "waiting for DynamoDB", seconds=pause, why=str(error))
                    self._stopped.wait(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    continue
                pause = self._poll_seconds
                if once and all(map(_is_read, self._readable())):
                    break
                if not busy:
                    self._stopped.wait(_BETWEEN_EMPTY_READS if once else self._poll_seconds)
        finally:
            self._save()
        return self._counts

    def _round(self, once: bool) -> bool:
        """Read each shard once; whether there were records."""
        if time.monotonic() - self._looked >= _SHARDS_SECONDS:
            self._look()
        busy, trouble = False, None
        for shard in self._readable():
            if self._stopped.is_set():
                break
            if once and _is_read(shard):
                continue
            try:
                busy = self._read(shard) or busy
            except RateLimiterUnavailable as error:
                trouble = error  # continue with the other shards
        if time.monotonic() - self._saved >= _SAVE_SECONDS:
            self._save()
        self._report(AggregatorProgress(self._counts, len(self._readable()), self._behind(busy)))
        if trouble is not None:
            raise trouble
        return busy

    def _look(self) -> None:
        """Look for new shards, and for a new stream after the old one is read."""
        if not self._shards or not (self._stream.enabled or self._readable()):
            arn = run(newest_stream_plan(self._deliverer), self._perform)
            if not self._shards or arn != self._stream.arn:
                self._save()
                self._stream.arn = arn
                self._shards = self._remembered()
        known, self._shards = self._shards, {}
        for shard in self._stream.shards():
            found = self._shards[shard.id] = known.get(shard.id, shard)
            found.parent, found.closed = shard.parent, shard.closed
        self._until = self._until or self._stream.now or int(time.time())
        self._looked = time.monotonic()

    def _remembered(self) -> dict[str, Shard]:
        found = run(load_plan(self._deliverer, self._stream.label), self._perform)
        return {shard: Shard(shard, position=position) for shard, position in found.items()}

    def _readable(self) -> list[Shard]:
        def done(shard: str | None) -> bool:
            return shard is None or shard not in self._shards or self._shards[shard].ended

        return [shard for shard in self._shards.values() if not shard.ended and done(shard.parent)]

    def _read(self, shard: Shard) -> bool:
        records = self._stream.read(shard)
        if records:
            self._process(shard, records)
            shard.advance(sequence_of(records[-1]))
            shard.unsaved = shard.unsaved or not all(map(is_checkpoint, records))
        else:
            shard.idle += 1
            shard.advance(None)
        if shard.ended:
            shard.unsaved = True
            self._looked = float("-inf")  # to find its children
        return bool(records)

    def _process(self, shard: Shard, records: Sequence[Any]) -> None:
        outcome = self._aggregator.process(records, self._stream.label)
        if outcome.failed is not None:
            shard.rewind()
            raise RateLimiterUnavailable(f"table {self._deliverer.table!r} does not accept usage")
        self._counts += outcome.counts
        self._latest = moment_of(records[-1])
        shard.idle = _IDLE_READS if self._latest is not None and self._latest > self._until else 0

    def _behind(self, busy: bool) -> float:
        return max(0.0, time.time() - self._latest) if busy and self._latest is not None else 0.0

    def _save(self) -> None:
        positions = {shard.id: shard.position for shard in self._shards.values() if shard.unsaved and shard.position}
        self._saved = time.monotonic()
        if not positions:
            return
        try:
            run(save_plan(self._deliverer, self._stream.label, positions), self._perform)
        except RateLimiterUnavailable as error:
            log(logging.WARNING, "position not saved", why=str(error))
            return
        for shard in positions:
            self._shards[shard].unsaved = False


def _is_read(shard: Shard) -> bool:
    """Whether it is read to the end, as far as this can be known of an open shard."""
    return shard.ended or (shard.idle >= _IDLE_READS and not shard.closed)
