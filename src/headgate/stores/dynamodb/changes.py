"""Changes of records, all or none, each under the condition that its record has the version expected.

A change alone is a conditional write. Several are a transaction, which costs twice as much, but has a token that makes
it safe to send again when the reply was lost.

A Put for any version has to know which one there is, to count it up. It is read, and written under the condition that
it is still so; whoever is overtaken reads again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from ...core.errors import ValidationError, VersionConflict
from ...core.records import ABSENT, Change, Check, Delete, Put
from ...plan import Plan, Sleep
from ..contract import MAX_CHANGES
from .attributes import attribute, values_of
from .deliver import Deliverer
from .documents import EXPIRES, Home, home_of
from .exchange import Failed, Send
from .reads import key_of, read_items_plan

_LONGEST_PAUSE = 0.2


class _Write(NamedTuple):
    """`expected`: the version asked for, or for a blind Put the one that was found. None: any."""

    change: Change
    home: Home
    expected: int | None

    @property
    def blind(self) -> bool:
        return self.change.expected is None

    def operation(self, table: str, now_ms: int) -> tuple[str, dict[str, Any]]:
        """What it is called in a transaction, and its parameters there or alone."""
        change, home = self.change, self.home
        parameters = {"TableName": table, **self._condition(now_ms)}
        if isinstance(change, Put):
            version = (self.expected or ABSENT) + 1
            return "Put", {**parameters, "Item": home.item(change.value, version, change.expires_at_ms, now_ms)}
        return "Delete" if isinstance(change, Delete) else "ConditionCheck", {
            **parameters,
            "Key": key_of(home.item_key),
        }

    def _condition(self, now_ms: int) -> dict[str, Any]:
        if self.expected is None:
            return {}
        condition = self.home.condition(self.expected)
        names = {"#version": self.home.version_attribute, "#expires": EXPIRES}
        values = {":now": attribute(now_ms), ":version": attribute(self.expected)}
        return {
            "ConditionExpression": condition,
            **_used(condition, "ExpressionAttributeNames", names),
            **_used(condition, "ExpressionAttributeValues", values),
        }


def _used(condition: str, what: str, all_of: Mapping[str, Any]) -> dict[str, Any]:
    """DynamoDB wants those that the condition has, and no others."""
    used = {name: value for name, value in all_of.items() if name in condition}
    return {what: used} if used else {}


def write_plan(deliver: Deliverer, ns: str, changes: Sequence[Change], now_ms: int) -> Plan[None]:
    wanted = _with_homes(changes, ns)
    turn = 0
    while wanted:
        writes = yield from _writes_plan(deliver, wanted, now_ms)
        send = _send(deliver.table, writes, now_ms)
        result = yield from deliver.one_plan(send)
        if not isinstance(result, Failed):
            return
        _raise_conflict(result, writes)
        turn += 1
        yield from Sleep(random.uniform(0.5, 1) * min(0.005 * 2**turn, _LONGEST_PAUSE))


def _with_homes(changes: Sequence[Change], ns: str) -> list[tuple[Change, Home]]:
    """What there is to do. Changes of records that follow from others happen with those."""
    if len(changes) > MAX_CHANGES:
        raise ValidationError(
            f"{len(changes)} changes are too many for one write: at most {MAX_CHANGES}, or write twice"
        )
    wanted: dict[tuple[str, str], tuple[Change, Home]] = {}
    for change in changes:
        home = home_of(change.key, ns)
        if home.derived:
            if change.expected is not None:
                raise ValidationError(f"record {change.key!r} has no version: it follows from {home.pk!r} {home.sk!r}")
            continue
        if home.item_key in wanted:
            raise ValidationError(f"record {change.key!r} is changed twice in one write: change it once")
        wanted[home.item_key] = (change, home)
    return list(wanted.values())


def _writes_plan(deliver: Deliverer, wanted: Sequence[tuple[Change, Home]], now_ms: int) -> Plan[list[_Write]]:
    counts_up = [
        isinstance(change, Put) and change.expected is None and not home.written_once for change, home in wanted
    ]
    blind = [home.item_key for (_, home), counted in zip(wanted, counts_up) if counted]
    found = yield from read_items_plan(deliver, blind)
    writes = []
    for (change, home), counted in zip(wanted, counts_up):
        expected = change.expected
        if counted:
            expected = home.known_version(values_of(found.get(home.item_key, {})), now_ms)
        writes.append(_Write(change, home, expected))
    return writes


def _send(table: str, writes: Sequence[_Write], now_ms: int) -> Send:
    operations = [write.operation(table, now_ms) for write in writes]
    if len(writes) == 1 and not isinstance(writes[0].change, Check):
        ((name, parameters),) = operations
        # If the reply is lost, a condition may not hold because it was met before.
        return Send(f"{name}Item", parameters, repeatable=writes[0].expected is None)
    transaction = {
        "TransactItems": [{name: parameters} for name, parameters in operations],
        "ClientRequestToken": str(uuid4()),
    }
    return Send("TransactWriteItems", transaction, repeatable=True)


def _raise_conflict(failed: Failed, writes: Sequence[_Write]) -> None:
    """The first version that was not as asked for. Otherwise it was a race, and may be run again."""
    reasons = failed.reasons or [failed] * len(writes)
    for reason, write in zip(reasons, writes):
        if reason.code == "ConditionalCheckFailed" and not write.blind:
            raise VersionConflict(write.change.key)
        if reason.code not in ("None", "ConditionalCheckFailed", "TransactionConflict"):
            raise ValidationError(f"record {write.change.key!r} cannot be written: {reason.code}: {reason.message}")
