"""What is written to an item, and on which condition.

    busy     ADD V        if low <= V <= high: the decision holds for every V in between. Tokens are given back in the
                          same way to a shard that has room for them: if this one has none, another has
    idle     SET V        if V is in the past: the bucket is full, no matter since when
    open     SET V        if a quota is in the window that was seen, which is over, no matter what V is: the next window
    give     ADD V        whatever V is: a V in the past means full, and a bucket cannot be more than full
    replace  SET V        if V is unchanged since the decision: a new limit, a penalty, and other rare cases
    missing  SET V        if the item does not have the limit yet
    upsert   SET V        idle or missing, or no such item: used when nothing is known of the item

All limits of an item are written together or not at all. A DynamoDB operation costs the same for any number of them.
Usage is added to the count of the hour in the same write.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from ...core.usage import hour_of
from .exchange import Attributes, Send
from .places import ItemPlace
from .rows import PREFIX, Row, used_name

MARGIN_SECONDS = 3600
_LESS_THAN_ANY = {"N": "-1E+100"}


class Form(Enum):
    BUSY = "busy"
    IDLE = "idle"
    OPEN = "open"
    GIVE = "give"
    REPLACE = "replace"
    MISSING = "missing"
    UPSERT = "upsert"


class LimitWrite(NamedTuple):
    """`low` and `high`: the range that V must be in. `v`: the new V, or for ADD the difference."""

    name: str
    form: Form
    v: int
    at_ms: int
    consumed_milli: int
    low: int
    high: int
    written_before: str
    written: str
    revision: int

    @property
    def used_name(self) -> str:
        return used_name(self.name, hour_of(self.at_ms))


class Write(Protocol):
    """One write to one item."""

    def update(self, table: str) -> Send: ...
    def transact(self, table: str) -> dict[str, Any]:
        """The parameters of an Update, alone or in a transaction."""

    def statement(self, table: str) -> dict[str, Any] | None:
        """The same as a PartiQL statement, many of which fit in one request; None if it cannot be expressed as one."""


class ItemWrite(NamedTuple):
    """A write to an item of buckets. `row`: the item as it is assumed to be, None if nothing is known of it.
    `usage_ms`: how long usage is kept; 0 if it is not counted.
    """

    place: ItemPlace
    row: Row | None
    at_ms: int
    full_at_ms: int
    limits: Sequence[LimitWrite]
    usage_ms: int = 0

    @property
    def ttl(self) -> int:
        return time_to_live(self.row, max(self.full_at_ms - self.at_ms, self.usage_ms))

    def counts(self, limit: LimitWrite) -> bool:
        return bool(self.usage_ms and limit.consumed_milli)

    def _counted(self) -> list[str]:
        """The attribute that counts the usage of each limit, "" if it is not counted."""
        return [limit.used_name if self.counts(limit) else "" for limit in self.limits]

    def update(self, table: str) -> Send:
        return Send("UpdateItem", {**self.transact(table), "ReturnValues": "ALL_NEW"})

    def transact(self, table: str) -> dict[str, Any]:
        expression = _Expression()
        exists = self.row is not None and bool(self.row.states)
        expression.names["#sc"] = "shard_count"
        expression.values[":sc"] = _number(self.row.shard_count if self.row else 1)
        if exists:
            expression.conditions.append("#sc = :sc")
        else:
            expression.conditions.append("(attribute_not_exists(#sc) OR #sc = :sc)")
            expression.sets.append("#sc = :sc")
            for place, (name, value) in enumerate(self.place.fixed().items()):
                expression.names[f"#f{place}"], expression.values[f":f{place}"] = name, value
                expression.sets.append(f"#f{place} = :f{place}")
        if ttl := self.ttl:
            expression.names["#ttl"], expression.values[":ttl"] = "ttl", _number(ttl)
            expression.sets.append("#ttl = :ttl")
            expression.conditions.append("(attribute_not_exists(#ttl) OR #ttl < :ttl)")
        expression.names |= {"#at": "at", "#w": "wcu"}
        expression.values |= {":at": _number(self.at_ms), ":w": _number(1)}
        expression.sets.append("#at = :at")
        expression.adds.append("#w :w")
        for place, limit in enumerate(self.limits):
            expression.add(str(place), limit)
            if self.counts(limit):
                expression.count(str(place), limit)
        return {
            "TableName": table,
            "Key": self.place.key,
            "UpdateExpression": f"SET {', '.join(expression.sets)} ADD {', '.join(expression.adds)}",
            "ConditionExpression": " AND ".join(expression.conditions),
            "ExpressionAttributeNames": expression.names,
            "ExpressionAttributeValues": expression.values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def statement(self, table: str) -> dict[str, Any] | None:
        if self.row is None or self.ttl or any(limit.form not in _STATEMENTS for limit in self.limits):
            return None
        counted = self._counted()
        if not self.row.used.keys() >= {*counted} - {""}:
            return None  # a statement adds only to what is there
        names = tuple((limit.name, limit.form, used) for limit, used in zip(self.limits, counted))
        text = _statement_text(table, names)
        sets, conditions = [_number(self.at_ms)], [self.row.shard_count]
        texts: list[Attributes] = []
        for limit, used in zip(self.limits, counted):
            sets += map(_number, (limit.v, limit.at_ms, *[limit.consumed_milli] * (2 if used else 1)))
            sets += [{"S": limit.written}] * (limit.form is Form.OPEN)
            texts.append({"S": limit.written_before})
            conditions += {Form.BUSY: [limit.low, limit.high], Form.IDLE: [limit.high]}.get(limit.form, [])
        there = [_LESS_THAN_ANY] * sum(map(bool, counted))
        parameters = [*sets, *self.place.key.values(), *texts, *map(_number, conditions), *there]
        return {"Statement": text, "Parameters": parameters, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def time_to_live(row: Row | None, needed_ms: int) -> int:
    """The time to live to write; 0 if the item's own is late enough, or if it has none because it has shards.

    It only moves forward, so a client with an older view of the item assumes an earlier time, never a later one.
    DynamoDB uses its own clock, whatever clock the limiter was given.
    """
    if row is not None and row.shard_count > 1:
        return 0
    needed = int(time.time()) + -(-needed_ms // 1000)
    return 0 if row is not None and row.ttl > needed else needed + MARGIN_SECONDS


_ADDS = {Form.BUSY, Form.GIVE}
_STATEMENTS = {*_ADDS, Form.IDLE, Form.OPEN}


@lru_cache(1024)
def _statement_text(table: str, limits: tuple[tuple[str, Form, str], ...]) -> str:
    sets, texts, conditions, there = ['"wcu" = "wcu" + 1', '"at" = ?'], [], ['"shard_count" = ?'], []
    for name, form, used in limits:
        v, at, written, consumed = (f'"{PREFIX}{name}_{suffix}"' for suffix in ("vt", "at", "lm", "tc"))
        sets += [f"{v} = {v} + ?" if form in _ADDS else f"{v} = ?", f"{at} = ?", f"{consumed} = {consumed} + ?"]
        if used:
            sets.append(f'"{used}" = "{used}" + ?')
            there.append(f'"{used}" > ?')
        if form is Form.OPEN:
            sets.append(f"{written} = ?")
        texts.append(f"{written} = ?")
        if form in (Form.BUSY, Form.IDLE):
            conditions.append(f"{v} < ?" if form is Form.IDLE else f"{v} BETWEEN ? AND ?")
    where = " AND ".join(['"PK" = ? AND "SK" = ?', *texts, *conditions, *there])
    return f'UPDATE "{table}" SET {" SET ".join(sets)} WHERE {where} RETURNING ALL NEW *'


class _Expression:
    def __init__(self) -> None:
        self.sets: list[str] = []
        self.adds: list[str] = []
        self.conditions: list[str] = []
        self.names: dict[str, str] = {}
        self.values: dict[str, Attributes] = {}

    def add(self, i: str, limit: LimitWrite) -> None:
        form = limit.form
        for short, suffix in (("v", "vt"), ("t", "at"), ("l", "lm"), ("c", "tc")):
            self.names[f"#{short}{i}"] = f"{PREFIX}{limit.name}_{suffix}"
        self.values[f":v{i}"] = _number(limit.v)
        self.values[f":t{i}"] = _number(limit.at_ms)
        self.values[f":c{i}"] = _number(limit.consumed_milli)
        self.sets.append(f"#t{i} = :t{i}")
        self.adds.append(f"#c{i} :c{i}")
        self.conditions.append(self._condition(i, limit))
        if form in _ADDS:
            self.adds.append(f"#v{i} :v{i}")
            return
        self.sets.append(f"#v{i} = :v{i}")
        if form is not Form.IDLE:  # which keeps the limit
            self.values[f":l{i}"] = {"S": limit.written}
            self.sets.append(f"#l{i} = :l{i}")
            if limit.revision:
                self.names[f"#r{i}"], self.values[f":r{i}"] = f"{PREFIX}{limit.name}_rv", _number(limit.revision)
                first = f"if_not_exists(#r{i}, :r{i})" if form is Form.UPSERT else f":r{i}"
                self.sets.append(f"#r{i} = {first}")

    def count(self, i: str, limit: LimitWrite) -> None:
        self.names[f"#u{i}"] = limit.used_name
        self.adds.append(f"#u{i} :c{i}")

    def _condition(self, i: str, limit: LimitWrite) -> str:
        form = limit.form
        if form is Form.MISSING:
            return f"attribute_not_exists(#v{i}) AND attribute_exists(#sc)"
        if form is Form.UPSERT:
            self.values[f":h{i}"] = _number(limit.high)
            absent = f"attribute_not_exists(#v{i}) AND attribute_not_exists(#l{i})"
            return f"(({absent}) OR (#l{i} = :l{i} AND #v{i} < :h{i}))"
        self.values[f":b{i}"] = {"S": limit.written_before}
        same_limit = f"#l{i} = :b{i}"
        if form in (Form.GIVE, Form.OPEN):
            return same_limit
        self.values[f":h{i}"] = _number(limit.high)
        if form is Form.IDLE:
            return f"{same_limit} AND #v{i} < :h{i}"
        if form is Form.REPLACE:
            return f"{same_limit} AND #v{i} = :h{i}"
        self.values[f":o{i}"] = _number(limit.low)
        return f"{same_limit} AND #v{i} BETWEEN :o{i} AND :h{i}"


def _number(value: int) -> Mapping[str, str]:
    return {"N": str(value)}
