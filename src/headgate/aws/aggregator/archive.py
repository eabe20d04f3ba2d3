"""Expired audit events in S3, as compressed lines of JSON.

One object has the events of a batch that are of one namespace and one day. Its name has the first and the last record.
The same batch delivered again writes the same object. Delivered with other records around it, a line may be written a
second time to another object: objects cannot be appended to, and one object per event would make a long archive slow to
read. So each line has an `event_id`, and a reader skips repeated ids, as `archived` does.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

from .records import ExpiredEvent
from .windows import start_text

_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})T")
_NOT_OF_THE_EVENT = re.compile(r"PK|SK|GSI\d[PS]K|ttl|value|version|expires_at_ms")


def objects(events: Iterable[ExpiredEvent]) -> dict[str, bytes]:
    """Name and content of each object."""
    gathered: dict[str, dict[str, ExpiredEvent]] = {}
    for event in events:
        gathered.setdefault(prefix(event.ns, _day(event)), {})[event.position.mark] = event
    named: dict[str, bytes] = {}
    for folder, found in gathered.items():
        marks = sorted(found)
        text = "".join(_line(found[mark]) + "\n" for mark in marks)
        named[f"{folder}{marks[0]}-{marks[-1]}.jsonl.gz"] = gzip.compress(text.encode(), mtime=0)
    return named


def prefix(ns: str, day: date) -> str:
    return f"audit/{ns}/year={day.year:04}/month={day.month:02}/day={day.day:02}/"


def _day(event: ExpiredEvent) -> date:
    """The day on which it happened; if the event does not have it, the day on which it expired."""
    found = _DAY.search(str(event.values.get("SK")))
    at_ms = _fields(event).get("at_ms")
    try:
        if isinstance(at_ms, int):
            return datetime.fromtimestamp(at_ms / 1000, timezone.utc).date()
        return date(*map(int, found.groups())) if found else _expired(event).date()
    except (ValueError, OverflowError, OSError):
        return _expired(event).date()


def _fields(event: ExpiredEvent) -> Mapping[str, Any]:
    """The fields of the limiter's record; none if it is not one."""
    try:
        fields = json.loads(event.values["value"])
    except (KeyError, TypeError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _expired(event: ExpiredEvent) -> datetime:
    return datetime.fromtimestamp(event.position.at, timezone.utc)


def _line(event: ExpiredEvent) -> str:
    values = event.values
    line = {
        "event_id": f"{values.get('PK')}{values.get('SK')}",
        "expired_at": start_text(event.position.at),
        **{name: values[name] for name in sorted(values) if not _NOT_OF_THE_EVENT.fullmatch(name)},
        **_fields(event),
    }
    return json.dumps(line, default=str)


class Archive:
    """An S3 bucket. `client` is a boto3 client."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self.bucket = bucket

    def put(self, events: Sequence[ExpiredEvent]) -> None:
        for name, content in objects(events).items():
            self._client.put_object(Bucket=self.bucket, Key=name, Body=content, ContentType="application/gzip")


def archived(client: Any, bucket: str, ns: str, day: date) -> Iterator[dict[str, Any]]:
    """The events of a day, each once."""
    known: set[str] = set()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix(ns, day)):
        for found in page.get("Contents", ()):
            with client.get_object(Bucket=bucket, Key=found["Key"])["Body"] as body:
                text = gzip.decompress(body.read()).decode()
            for line in text.splitlines():
                event = json.loads(line)
                if event["event_id"] not in known:
                    known.add(event["event_id"])
                    yield event
