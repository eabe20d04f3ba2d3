"""A batch of stream records: parsing and counting them, archiving audit events and splitting hot buckets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...core.errors import HeadgateError
from ...plan import Call, run
from ...stores.dynamodb.deliver import Deliverer
from .archive import Archive
from .hot_buckets import HotBuckets, Splitter, wanted_splits
from .log import log
from .records import BucketChange, ExpiredEvent, StreamPosition, Unreadable, read_record, sequence_of
from .usage_items import apply_plan, usage_writes
from .windows import DEFAULT_RETENTION_DAYS, check_retention_days

_WRITES_AT_ONCE = 100

Perform: TypeAlias = Callable[[Call[Any]], Any]


@dataclass(frozen=True, slots=True)
class Counts:
    """What was done with records.

    `counted` in usage, by `writes` to the table; `skipped` because they can never be read or counted; `archived` audit
    events; `splits` of hot buckets.
    """

    records: int = 0
    counted: int = 0
    writes: int = 0
    skipped: int = 0
    archived: int = 0
    splits: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self._values(), other._values())))

    def _values(self) -> Iterable[int]:
        return self.as_dict().values()

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """`failed`: the sequence number from which on the records must be delivered again, if any."""

    counts: Counts
    failed: str | None = None


class Aggregator:
    """Takes the records of a stream in order; repeated records do no harm. `split` may do nothing."""

    def __init__(
        self,
        deliverer: Deliverer,
        perform: Perform,
        *,
        retention_days: int = DEFAULT_RETENTION_DAYS,
        archive: Archive | None = None,
        split: Splitter = lambda split: False,
    ) -> None:
        self._deliverer = deliverer
        self._perform = perform
        self._retention_days = check_retention_days(retention_days)
        self._archive = archive
        self._split = split
        self._pressure = HotBuckets()

    def process(
        self, records: Sequence[Any], label: str | None = None, has_time: Callable[[], bool] = lambda: True
    ) -> BatchResult:
        """`label` of the stream, if the records do not have it. When `has_time` says no, the rest must be delivered
        again.
        """
        changes: list[BucketChange] = []
        expired: list[ExpiredEvent] = []
        skipped = 0
        for record in records:
            try:
                found = read_record(record, label)
            except Unreadable as error:
                skipped += 1
                log(logging.ERROR, "record skipped", sequence_number=sequence_of(record), why=str(error))
                continue
            if isinstance(found, BucketChange):
                changes.append(found)
            elif found is not None:
                expired.append(found)
        counted = [change for change in changes if change.deltas]
        writes, late, refused = self._count(counted, has_time)
        archived, unarchived = self._keep(expired, late)
        failed = min([*late, *unarchived], key=lambda position: position.mark, default=None)
        counts = Counts(
            records=len(records),
            counted=len({change.position.mark for change in counted})
            - len({position.mark for position in (*late, *refused)}),
            writes=writes,
            skipped=skipped + len(refused),
            archived=archived,
            splits=self._spread(changes),
        )
        return BatchResult(counts, None if failed is None else failed.sequence)

    def _count(
        self, changes: Sequence[BucketChange], has_time: Callable[[], bool]
    ) -> tuple[int, set[StreamPosition], set[StreamPosition]]:
        writes = usage_writes(changes)
        done, late, refused = 0, set[StreamPosition](), set[StreamPosition]()
        for start in range(0, len(writes), _WRITES_AT_ONCE):
            part = writes[start : start + _WRITES_AT_ONCE]
            if has_time():
                applied = run(apply_plan(self._deliverer, part, self._retention_days), self._perform)
                done += applied.writes
                late |= {change.position for change in applied.late}
                refused |= {change.position for change in applied.refused}
            else:
                late |= {change.position for write in part for change in write.changes}
        for position in refused:
            log(logging.ERROR, "record refused by the table", sequence_number=position.sequence)
        if late:
            log(logging.WARNING, "records must be delivered again", records=len(late))
        return done, late, refused - late

    def _keep(self, expired: Sequence[ExpiredEvent], late: set[StreamPosition]) -> tuple[int, Sequence[StreamPosition]]:
        """Archive them, except those that will be delivered again: they would be archived twice."""
        first_late = min((position.mark for position in late), default=None)
        events = [event for event in expired if first_late is None or event.position.mark < first_late]
        if not events or self._archive is None:
            return 0, ()
        try:
            self._archive.put(events)
        except Exception as error:  # any error of the driver: events are only safe once they are archived
            log(logging.ERROR, "audit events not archived", events=len(events), why=type(error).__name__)
            return 0, [event.position for event in events]
        return len({event.position.mark for event in events}), ()

    def _spread(self, changes: Sequence[BucketChange]) -> int:
        """Splits early. Clients split throttled buckets themselves, so a failure here delays nothing."""
        done = 0
        for split in wanted_splits(changes, self._pressure):
            try:
                done += self._split(split)
            except HeadgateError as error:
                log(logging.WARNING, "bucket not split", shards=split.shards, why=type(error).__name__)
        return done
