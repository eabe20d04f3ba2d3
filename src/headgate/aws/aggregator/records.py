"""Parsing the records of the table's stream, as a Lambda gets them and as GetRecords returns them.

They differ only in spelling: a Lambda gets seconds where GetRecords has a datetime, and `principalId` instead of
`PrincipalId`. The window of a record must not depend on the reader, so times are cut to whole seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...stores.dynamodb import keys
from ...stores.dynamodb.exchange import Item
from ...stores.dynamodb.items import value_of, values_of
from ...stores.dynamodb.url import MAX_SHARDS
from .windows import is_moment

_PREFIX, _CONSUMED = "b_", "_tc"
_DIGITS = 40  # the length of the longest sequence number
_LABEL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?Z?", re.ASCII)
_LABEL_DIGITS = 17  # of 2024-01-01T00:00:00.000
_MILLISECONDS = 10**11  # from here on it is in milliseconds: in seconds it would be the year 5138
_SERVICE = "dynamodb.amazonaws.com"


class Unreadable(ValueError):
    """A record that can never be read. The message says what is wrong, without its contents."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a record.

    `mark` orders all records of an item, even across streams of the table or of one restored from a backup: the time at
    which the stream was created, then the sequence number, both with leading zeros.
    """

    mark: str
    sequence: str
    at: int


@dataclass(frozen=True, slots=True)
class Writes:
    """An item before and after a change: its number of writes, their times by the writers' clocks, and its shards."""

    before: int
    after: int
    before_ms: int
    after_ms: int
    shards_before: int
    shards: int
    units: int  # of write capacity, for one write


@dataclass(frozen=True, slots=True)
class BucketChange:
    """An item of buckets was created or changed. `deltas`: millitokens consumed, by limit; never zero."""

    position: StreamPosition
    pk: str
    ns: str
    entity_id: str
    resource: str
    shard: int
    deltas: Mapping[str, int]
    writes: Writes


@dataclass(frozen=True, slots=True)
class ExpiredEvent:
    """An audit event that has expired."""

    position: StreamPosition
    ns: str
    values: Mapping[str, Any]


def read_record(record: Any, label: str | None = None) -> BucketChange | ExpiredEvent | None:
    """The change in a record, or None if it does not matter here.

    `label` of the stream, for records that do not have it.
    """
    body = _mapping(record, "dynamodb")
    found = _mapping(body, "Keys")
    pk, sk = _text(found, "PK"), _text(found, "SK")
    ns, kind, _ = keys.parse_pk(pk)
    event = record.get("eventName")
    if event not in ("INSERT", "MODIFY", "REMOVE"):
        raise Unreadable("eventName is not INSERT, MODIFY or REMOVE")
    if kind == "BUCKET" and sk == keys.STATE and event != "REMOVE":
        return _bucket_change(record, body, pk, label)
    if kind == "AUDIT" and not sk.startswith(keys.sk_audited("")) and event == "REMOVE" and _by_expiry(record):
        return ExpiredEvent(_position(record, body, label), ns, _values(_mapping(body, "OldImage")))
    return None


def sequence_of(record: Any) -> str | None:
    try:
        return _sequence(_mapping(record, "dynamodb"))
    except Unreadable:
        return None


def moment_of(record: Any) -> int | None:
    """When it happened, in seconds."""
    try:
        return _moment(_mapping(record, "dynamodb"))
    except Unreadable:
        return None


def _bucket_change(record: Any, body: Mapping[str, Any], pk: str, label: str | None) -> BucketChange:
    try:
        ns, entity_id, resource, shard = keys.parse_bucket_pk(pk)
    except ValueError:
        raise Unreadable("PK is not the key of a bucket") from None
    if not 0 <= shard < MAX_SHARDS:
        raise Unreadable(f"shard {shard} is not from 0 to {MAX_SHARDS - 1}")
    new = _mapping(body, "NewImage")
    old = _mapping(body, "OldImage") if record["eventName"] == "MODIFY" else {}
    writes = Writes(
        _number(old, "wcu"),
        _number(new, "wcu"),
        _number(old, "at") or _number(new, "at"),
        _number(new, "at"),
        _number(old, "shard_count") or 1,
        _number(new, "shard_count") or 1,
        _units(body, bool(old)),
    )
    return BucketChange(_position(record, body, label), pk, ns, entity_id, resource, shard, _deltas(new, old), writes)


def _deltas(new: Item, old: Item) -> dict[str, int]:
    """A limit that was removed from the item consumed nothing by that: only limits in the new image count."""
    deltas: dict[str, int] = {}
    for name in new:
        if name.startswith(_PREFIX) and name.endswith(_CONSUMED) and len(name) > len(_PREFIX + _CONSUMED):
            delta = _number(new, name) - _number(old, name)
            if delta:
                deltas[name[len(_PREFIX) : -len(_CONSUMED)]] = delta
    return deltas


def _units(body: Mapping[str, Any], both_images: bool) -> int:
    size = body.get("SizeBytes")
    return max(1, -(-size // (2048 if both_images else 1024))) if isinstance(size, int) else 1


def _position(record: Any, body: Mapping[str, Any], label: str | None) -> StreamPosition:
    arn = record.get("eventSourceARN")
    if isinstance(arn, str):
        label = arn.rpartition("/stream/")[2]
    if not _LABEL.fullmatch(label or ""):
        raise Unreadable("eventSourceARN does not name a stream")
    created = re.sub(r"\D", "", label or "")[:_LABEL_DIGITS].ljust(_LABEL_DIGITS, "0")
    sequence = _sequence(body)
    return StreamPosition(f"{created}.{sequence.zfill(_DIGITS)}", sequence, _moment(body))


def _sequence(body: Mapping[str, Any]) -> str:
    sequence = body.get("SequenceNumber")
    if not (isinstance(sequence, str) and sequence.isascii() and sequence.isdigit() and len(sequence) <= _DIGITS):
        raise Unreadable("SequenceNumber is not a number of at most 40 digits")
    return sequence


def _moment(body: Mapping[str, Any]) -> int:
    value = body.get("ApproximateCreationDateTime")
    if isinstance(value, datetime):
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Unreadable("ApproximateCreationDateTime is not a moment")
    at = int(value // 1000 if value >= _MILLISECONDS else value)
    if not is_moment(at):
        raise Unreadable("ApproximateCreationDateTime is not a moment")
    return at


def _by_expiry(record: Mapping[str, Any]) -> bool:
    who = record.get("userIdentity")
    if not isinstance(who, Mapping):
        return False
    lowered = {str(name).lower(): value for name, value in who.items()}
    return lowered.get("principalid") == _SERVICE and lowered.get("type") == "Service"


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(found, Mapping):
        raise Unreadable(f"{name} is missing")
    return found


def _text(item: Item, name: str) -> str:
    found = item.get(name)
    value = found.get("S") if isinstance(found, Mapping) else None
    if not isinstance(value, str):
        raise Unreadable(f"{name} is not a text")
    return value


def _values(item: Item) -> Mapping[str, Any]:
    try:
        return values_of(item)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        raise Unreadable("an attribute is not as DynamoDB writes it") from None


def _number(item: Item, name: str) -> int:
    found = item.get(name)
    if found is None:
        return 0
    try:
        value = value_of({"N": found["N"]})
    except (ArithmeticError, KeyError, TypeError, ValueError):
        value = None
    if not isinstance(value, int):
        raise Unreadable("an attribute that counts is not a whole number")
    return value
