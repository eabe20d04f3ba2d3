"""Everything that an aggregator needs, opened by the store's URL; and the aggregator as a process."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from ...core.errors import ValidationError
from ...core.names import shown_url
from ...plan import Plan, run
from ...stores.dynamodb.deliver import Deliverer
from ...stores.dynamodb.url import MAX_SHARDS, read_url
from .archive import Archive
from .batch import Aggregator, Counts
from .follower import POLL_SECONDS, Follower, OnProgress
from .hot_buckets import split_plan
from .stream import TableStream
from .transport import BotoTransport, client
from .windows import DEFAULT_RETENTION_DAYS

T = TypeVar("T")

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Host:
    """The table, the archive if it has a bucket, and the aggregator. Close it after use."""

    def __init__(
        self,
        url: str,
        *,
        archive_bucket: str | None = None,
        retention_days: int = DEFAULT_RETENTION_DAYS,
        max_shards: int | None = None,
    ) -> None:
        if not url.startswith("dynamodb://"):
            raise ValidationError(
                f"store URL {shown_url(url)!r} has no stream: write dynamodb://table?region=eu-west-1"
            )
        settings = read_url(url)
        if max_shards is not None:
            if max_shards not in [1 << n for n in range(MAX_SHARDS.bit_length())]:
                raise ValidationError(f"max_shards must be a power of two from 1 to {MAX_SHARDS}, not {max_shards!r}")
            settings = replace(settings, max_shards=max_shards)
        if archive_bucket is not None and not _BUCKET.fullmatch(archive_bucket):
            raise ValidationError(f"archive bucket {archive_bucket!r} is not the name of an S3 bucket")
        self.settings = settings
        self.deliverer = Deliverer(settings)
        self._transport = BotoTransport(settings)
        self._s3 = client(settings, "s3") if archive_bucket else None
        self.perform = self._transport.perform
        self.aggregator = Aggregator(
            self.deliverer,
            self.perform,
            retention_days=retention_days,
            archive=Archive(self._s3, archive_bucket) if archive_bucket else None,
            split=lambda split: self.run(split_plan(self.deliverer, split)),
        )

    def run(self, plan: Plan[T]) -> T:
        return run(plan, self.perform)

    def close(self) -> None:
        self._transport.close()
        if self._s3 is not None:
            self._s3.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def follow(
    url: str,
    *,
    archive_bucket: str | None = None,
    retention_days: int = DEFAULT_RETENTION_DAYS,
    max_shards: int | None = None,
    once: bool = False,
    poll_seconds: float = POLL_SECONDS,
    report: OnProgress = lambda progress: None,
) -> Counts:
    """Aggregate until SIGTERM or SIGINT; with `once`, only what is in the stream now. `report` is called after each
    round.
    """
    with Host(url, archive_bucket=archive_bucket, retention_days=retention_days, max_shards=max_shards) as host:
        stream = TableStream(host.settings)
        try:
            follower = Follower(
                host.aggregator, stream, host.deliverer, host.perform, poll_seconds=poll_seconds, report=report
            )
            with _stopped_by_signals(follower):
                return follower.run(once)
        finally:
            stream.close()


@contextmanager
def _stopped_by_signals(follower: Follower) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(kind, lambda number, frame: follower.stop()) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before):
            signal.signal(kind, handler)
