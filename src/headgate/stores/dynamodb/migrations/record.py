"""The record of a migration, in the table it fills: its source, its progress, and the lock of the running process.

Every saved page extends the lock by a minute. If a run is killed before it saves a page, the page is done again; items
are only written where there are none. The transaction that records the end also writes the version of the table, which
makes it usable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from ....core.errors import ValidationError
from ....plan import Plan, Sleep
from .. import keys
from ..deliver import Deliverer
from ..exchange import Failed, MoreTime, Send
from ..items import ItemKey, item_of, key_of, read_items_plan, values_of
from ..namespaces import namespace_item
from ..table import FILLING, SCHEMA, VERSION_KEY, version_item
from .source import Renamed

LEASE_MS = 60_000
RECORD_KEY: ItemKey = (VERSION_KEY[0], keys.sk_migration(SCHEMA))
_PAUSE = 0.05
_AT_ONCE = 50  # of what a transaction takes


class Noted(NamedTuple):
    """`start`: where the next page begins. `swept`: after a migration in place, whether the old items are removed."""

    source: str
    namespaces: Mapping[str, Renamed]
    cascade: bool | None = None
    start: ItemKey | None = None
    finished_at_ms: int = 0
    swept: bool = False

    @property
    def carried(self) -> list[Renamed]:
        return [each for each in self.namespaces.values() if each.id]


class MigrationRecord:
    def __init__(self, deliver: Deliverer, now_ms: Callable[[], int]) -> None:
        self._deliver = deliver
        self._now_ms = now_ms
        self._owner = str(uuid4())
        self._place = {"TableName": deliver.table, "Key": key_of(RECORD_KEY)}

    def read_plan(self) -> Plan[Noted | None]:
        found = yield from read_items_plan(self._deliver, [RECORD_KEY])
        return _noted(values_of(found[RECORD_KEY])) if found else None

    def begin_plan(self, wanted: Noted) -> Plan[Noted]:
        """Take the lock. The notes of an earlier run are kept, because their ids are in the items it wrote."""
        values: dict[str, str | int] = {
            ":owner": self._owner,
            ":until": self._now_ms() + LEASE_MS,
            ":now": self._now_ms(),
            ":source": wanted.source,
            ":namespaces": json.dumps(wanted.namespaces),
            ":cascade": json.dumps(wanted.cascade),
            ":registry": keys.REGISTRY,
            ":system": RECORD_KEY[0],
        }
        update = {
            **self._place,
            "UpdateExpression": "SET #owner = :owner, lock_until_ms = :until,"
            " #source = if_not_exists(#source, :source), namespaces = if_not_exists(namespaces, :namespaces),"
            " #cascade = if_not_exists(#cascade, :cascade),"
            " GSI4PK = :registry, GSI4SK = :system",
            "ConditionExpression": "attribute_not_exists(#owner) OR #owner = :owner OR lock_until_ms <= :now",
            "ExpressionAttributeNames": {"#owner": "owner", "#source": "source", "#cascade": "cascade"},
            "ExpressionAttributeValues": item_of(values),
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        yield from MoreTime()
        result = yield from self._deliver.one_plan(Send("UpdateItem", update, repeatable=True))
        if isinstance(result, Failed):
            seconds = (int(values_of(result.item or {}).get("lock_until_ms", 0)) - self._now_ms()) / 1000
            raise ValidationError(
                f"another run of this migration is filling table {self._deliver.table!r}; if that run was stopped, try "
                f"again in {max(1, seconds):.0f} seconds"
            )
        return _noted(values_of(result["Attributes"]))

    def mark_plan(self) -> Plan[None]:
        """Make the table unusable until the end."""
        lock = self._update({"lock_until_ms": self._now_ms() + LEASE_MS})
        put = {"TableName": self._deliver.table, "Item": version_item(FILLING)}
        yield from self._transact_plan([{"Update": lock}, {"Put": put}])

    def save_plan(self, start: ItemKey | None, **more: int) -> Plan[None]:
        """A page is done; the next one begins at `start`."""
        update = self._update({"start": json.dumps(start), "lock_until_ms": self._now_ms() + LEASE_MS, **more})
        yield from self._note_plan(Send("UpdateItem", update, repeatable=True))

    def end_plan(self, namespaces: Sequence[Renamed]) -> Plan[None]:
        """Register the namespaces, then write the version of the table and record the end, in one transaction."""
        table = self._deliver.table
        puts = [{"Put": {"TableName": table, "Item": namespace_item(*each)}} for each in namespaces]
        for first in range(0, len(puts), _AT_ONCE):
            lock = self._update({"lock_until_ms": self._now_ms() + LEASE_MS})
            yield from self._transact_plan([{"Update": lock}, *puts[first : first + _AT_ONCE]])
        finished = self._update({"finished_at_ms": self._now_ms(), "start": "null"})
        yield from self._transact_plan([{"Update": finished}, {"Put": {"TableName": table, "Item": version_item()}}])

    def _update(self, values: Mapping[str, str | int]) -> dict[str, Any]:
        names = {f"#{i}": name for i, name in enumerate(values)}
        return {
            **self._place,
            "UpdateExpression": "SET " + ", ".join(f"#{i} = :{i}" for i in range(len(values))),
            "ConditionExpression": "#owner = :owner",
            "ExpressionAttributeNames": {"#owner": "owner", **names},
            "ExpressionAttributeValues": item_of(
                {":owner": self._owner, **{f":{i}": value for i, value in enumerate(values.values())}}
            ),
        }

    def _transact_plan(self, changes: Sequence[Mapping[str, Any]]) -> Plan[None]:
        transaction = {"TransactItems": changes, "ClientRequestToken": str(uuid4())}
        yield from self._note_plan(Send("TransactWriteItems", transaction, repeatable=True))

    def _note_plan(self, send: Send) -> Plan[None]:
        while True:
            yield from MoreTime()
            result = yield from self._deliver.one_plan(send)
            if not isinstance(result, Failed):
                return
            if not any(reason.code == "TransactionConflict" for reason in (result, *result.reasons)):
                raise ValidationError(
                    f"another run of this migration has taken over table {self._deliver.table!r}, because this one was "
                    "too slow: wait until that run has ended, or try again"
                )
            yield from Sleep(_PAUSE)


def _noted(values: Mapping[str, Any]) -> Noted:
    start = json.loads(values.get("start", "null"))
    return Noted(
        values["source"],
        {ns: Renamed(*each) for ns, each in json.loads(values["namespaces"]).items()},
        json.loads(values["cascade"]),
        None if start is None else (start[0], start[1]),
        values.get("finished_at_ms", 0),
        bool(values.get("swept", 0)),
    )
