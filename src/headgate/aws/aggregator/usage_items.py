"""Adding what was consumed to the usage items, each record exactly once, even if it is delivered twice.

A stream delivers a record at least once: a batch comes again, with other records around it, or two aggregators read the
same. But the records of one item of buckets come in the order of their sequence numbers, and every reader starts at the
beginning or where everything before was counted. So one number is enough: for each shard of the buckets, a usage item
has the mark of the last record counted in it (`q_{shard}`), and records up to that mark are skipped. Count and mark are
written together or not at all.

    first try    every q_ is absent, or before the first record     the usual case: nothing to read
    then         every q_ is what the failed try returned           with the records after it

An update that succeeded although its reply was lost therefore fails when it is sent again, and nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...core.errors import RateLimiterUnavailable
from ...plan import Plan
from ...stores.dynamodb import keys
from ...stores.dynamodb.deliver import Deliverer, Outcome
from ...stores.dynamodb.exchange import Attributes, Failed, Item, Send
from ...stores.dynamodb.items import attribute
from .records import BucketChange
from .windows import WINDOWS, kept_until, start_text, window_start

USED = "u_"
_MARK = "q_"
# A condition has at most 300 operators, and a shard needs four.
_SHARDS_AT_ONCE = 32
# Each failed try but the first means that another aggregator made progress.
_TRIES = 20
_NEVER = frozenset({"Validation"})  # a number or item is too large: a retry cannot help


class UsageKey(NamedTuple):
    ns: str
    entity_id: str
    resource: str
    window: str
    start: int


@dataclass(frozen=True, slots=True)
class UsageWrite:
    """What to add to one usage item. The `changes` of a shard are in order. `seen`: the marks found in it, if it was
    read.
    """

    key: UsageKey
    changes: Sequence[BucketChange]
    seen: Mapping[int, str] | None = None

    def after(self, item: Item | None) -> UsageWrite:
        """The part of it that is not in the item yet."""
        marks = {int(name[len(_MARK) :]): value["S"] for name, value in (item or {}).items() if name.startswith(_MARK)}
        rest = [change for change in self.changes if change.position.mark > marks.get(change.shard, "")]
        return UsageWrite(self.key, rest, marks)

    def send(self, table: str, retention_days: int) -> Send:
        ns, entity_id, resource, window, start = self.key
        pk, text = keys.pk_entity(ns, entity_id), start_text(start)
        put: dict[str, str | int] = {
            "entity_id": entity_id,
            "resource": resource,
            "window": window,
            "window_start": text,
            "ttl": kept_until(window, start, retention_days),
            "GSI2PK": keys.gsi2_pk(ns, resource),
            "GSI2SK": keys.gsi2_sk_usage(window, text, entity_id),
            "GSI4PK": ns,
            "GSI4SK": pk,
        }
        add = {"total_events": len(self.changes)}
        first: dict[str, str] = {}
        for change in self.changes:
            mark = f"{_MARK}{change.shard}"
            first.setdefault(mark, change.position.mark)
            put[mark] = change.position.mark
            for limit, delta in change.deltas.items():
                add[USED + limit] = add.get(USED + limit, 0) + delta
        terms = _Terms()
        sets = ", ".join(f"{terms.name(name)} = {terms.value(value)}" for name, value in put.items())
        adds = ", ".join(f"{terms.name(name)} {terms.value(value)}" for name, value in add.items())
        condition = " AND ".join(self._condition(terms, mark, at) for mark, at in first.items())
        return Send(
            "UpdateItem",
            {
                "TableName": table,
                "Key": {"PK": attribute(pk), "SK": attribute(keys.sk_usage(resource, window, text))},
                "UpdateExpression": f"SET {sets} ADD {adds}",
                "ConditionExpression": condition,
                "ExpressionAttributeNames": terms.names,
                "ExpressionAttributeValues": terms.values,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            },
            repeatable=True,
        )

    def _condition(self, terms: _Terms, mark: str, first: str) -> str:
        name = terms.name(mark)
        if self.seen is None:
            return f"(attribute_not_exists({name}) OR {name} < {terms.value(first)})"
        found = self.seen.get(int(mark[len(_MARK) :]))
        return f"attribute_not_exists({name})" if found is None else f"{name} = {terms.value(found)}"


class _Terms:
    """Names and values of an expression: limits can have any name, and some of our own names are reserved."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Attributes] = {}
        self._short: dict[str, str] = {}

    def name(self, name: str) -> str:
        if name not in self._short:
            self._short[name] = f"#{len(self.names)}"
            self.names[self._short[name]] = name
        return self._short[name]

    def value(self, value: str | int) -> str:
        short = f":{len(self.values)}"
        self.values[short] = attribute(value)
        return short


def usage_writes(changes: Iterable[BucketChange]) -> list[UsageWrite]:
    """One for each usage item; more than one if the changes are of many shards."""
    gathered: dict[tuple[UsageKey, int], dict[tuple[int, str], BucketChange]] = {}
    for change in changes:
        if not change.deltas:
            continue
        for window in WINDOWS:
            start = window_start(window, change.position.at)
            key = UsageKey(change.ns, change.entity_id, change.resource, window, start)
            part = gathered.setdefault((key, change.shard // _SHARDS_AT_ONCE), {})
            part[change.shard, change.position.mark] = change
    return [UsageWrite(key, [part[place] for place in sorted(part)]) for (key, _), part in gathered.items()]


@dataclass
class Applied:
    """`late`: changes that must be delivered again. `refused`: those that can never be counted."""

    writes: int = 0
    late: list[BucketChange] = field(default_factory=list)
    refused: list[BucketChange] = field(default_factory=list)

    def note(self, write: UsageWrite, outcome: Outcome) -> UsageWrite | None:
        """Note the outcome of a write. Returns what must be tried again, if anything."""
        if isinstance(outcome, RateLimiterUnavailable):
            self.late += write.changes
        elif not isinstance(outcome, Failed):
            self.writes += 1
        elif outcome.code in _NEVER:
            self.refused += write.changes
        else:
            rest = write.after(outcome.item) if outcome.code == "ConditionalCheckFailed" else write
            return rest if rest.changes else None
        return None


def apply_plan(deliverer: Deliverer, writes: Sequence[UsageWrite], retention_days: int) -> Plan[Applied]:
    applied = Applied()
    for _ in range(_TRIES):
        sends = [write.send(deliverer.table, retention_days) for write in writes]
        outcomes = yield from deliverer.each_plan(sends, _NEVER)
        left = [applied.note(write, outcome) for write, outcome in zip(writes, outcomes)]
        writes = [write for write in left if write is not None]
        if not writes:
            break
    applied.late += [change for write in writes for change in write.changes]
    return applied
