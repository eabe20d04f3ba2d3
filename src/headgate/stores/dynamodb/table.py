"""The table: its keys and indexes, creating them, and the version of its layout.

A stack from `headgate aws template` has the same table. One record in the registry has the version: `schema_version`,
the number of the layout, and `min_client_schema`, the lowest number that a client must know to use it. All namespaces
of a table share one layout, because they share its indexes, and a migration is of the whole table. The record is beside
the names of the namespaces, so that one request reads both.

A layout that older clients can use raises only `schema_version`. zae-limiter has its own record under the same key, or
before its release 0.10 in another partition. Such a table is foreign, and never gets headgate's version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import RateLimiterUnavailable, ValidationError
from ...plan import Plan, Sleep
from . import keys
from .deliver import Deliverer, Denied
from .exchange import Attributes, Failed, Item, MoreTime, Send
from .items import ItemKey, item_of, read_items_plan, value_of

SCHEMA = 2  # what this code writes
FILLING = 1  # a migration is copying into the table, and has not finished

VERSION_KEY: ItemKey = (keys.pk_system(keys.REGISTRY), keys.VERSION)
OLDER_VERSION_KEY: ItemKey = ("SYSTEM#", keys.VERSION)


class Version(NamedTuple):
    schema: int
    min_client: int


class Foreign(NamedTuple):
    """The table has items that headgate has not written. `schema`: zae-limiter's version, if it has one."""

    schema: str | None = None

    @property
    def maker(self) -> str:
        return f"zae-limiter, schema version {self.schema}" if self.schema else "a table without a version record"


Found: TypeAlias = "Version | Foreign | None"  # None: the table is empty


def version_item(schema: int = SCHEMA) -> dict[str, Attributes]:
    pk, sk = VERSION_KEY
    return item_of(
        {
            "PK": pk,
            "SK": sk,
            "schema_version": schema,
            "min_client_schema": schema,
            "GSI4PK": keys.REGISTRY,
            "GSI4SK": pk,
        }
    )


class Versions:
    def __init__(self, deliver: Deliverer) -> None:
        self._deliver = deliver

    def check_plan(self, found: Mapping[ItemKey, Item] | None = None) -> Plan[Version | None]:
        """The table's version; an error if this code cannot use it. None: the table is unused.

        `found`: items that were read already, with the version if it exists.
        """
        return self.checked((yield from self.read_plan(found)))

    def read_plan(self, found: Mapping[ItemKey, Item] | None = None) -> Plan[Found]:
        if found is None:
            found = yield from read_items_plan(self._deliver, [VERSION_KEY])
        item = found.get(VERSION_KEY)
        if item is not None:
            return _version(item)
        # A separate read: a policy for one namespace allows no other key than the registry.
        older = yield from read_items_plan(self._deliver, [OLDER_VERSION_KEY])
        if older:
            return _version(older[OLDER_VERSION_KEY])
        if not (yield from self._has_items_plan()):
            return None
        # Another client may have written the version meanwhile: it is always the first item.
        found = yield from read_items_plan(self._deliver, [VERSION_KEY])
        return _version(found[VERSION_KEY]) if found else Foreign()

    def _has_items_plan(self) -> Plan[bool]:
        scan = {"Limit": 1, "ProjectionExpression": "PK", "ConsistentRead": True}
        try:
            reply = yield from self._deliver.read_plan("Scan", **scan)
        except Denied as error:
            raise Denied(
                f"table {self._deliver.table!r} has no version record, and these credentials may not check whether "
                f"it is empty: call limiter.setup() once with an administrator's credentials ({error})"
            ) from None
        return bool(reply["Items"])

    def write_plan(self, schema: int = SCHEMA) -> Plan[None]:
        """Write the version, unless there is one."""
        put = {
            "TableName": self._deliver.table,
            "Item": version_item(schema),
            "ConditionExpression": "attribute_not_exists(PK)",
        }
        yield from self._deliver.one_plan(Send("PutItem", put, repeatable=True))

    def checked(self, version: Found) -> Version | None:
        table = self._deliver.table
        if isinstance(version, Foreign):
            raise ValidationError(
                f"table {table!r} holds items that headgate has not written ({version.maker}): use another table, or "
                f"run `headgate aws migrate --name {table}`, which copies a zae-limiter table into a new one"
            )
        if version is None:
            return None
        if version.schema == FILLING:
            raise ValidationError(
                f"table {table!r} is being filled by `headgate aws migrate`, which has not finished: wait for it, or "
                "run the same command again"
            )
        if version.min_client > SCHEMA:
            raise ValidationError(
                f"table {table!r} has layout {version.schema}, this headgate knows layouts up to {SCHEMA}: upgrade "
                "headgate"
            )
        return version


def _version(item: Item) -> Version | Foreign:
    """zae-limiter's version is text; in releases before 0.6, inside a map."""
    item = item["data"]["M"] if "data" in item else item
    schema, min_client = item.get("schema_version", {}), item.get("min_client_schema", {})
    if "N" in schema and "N" in min_client:
        return Version(value_of(schema), value_of(min_client))
    return Foreign(schema.get("S"))


INDEXES = (keys.GSI1, keys.GSI2, keys.GSI3, keys.GSI4)
TTL = {"AttributeName": "ttl", "Enabled": True}
STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}

_PATIENCE_SECONDS = 600  # an index of a large table takes longer; its creation continues
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 1.0
_BUSY = frozenset({"ResourceInUse"})  # another client is creating or changing it


def _key_schema(index: str = "") -> list[dict[str, str]]:
    return [
        {"AttributeName": f"{index}PK", "KeyType": "HASH"},
        {"AttributeName": f"{index}SK", "KeyType": "RANGE"},
    ]


def _attributes(*indexes: str) -> list[dict[str, str]]:
    return [{"AttributeName": f"{index}{part}", "AttributeType": "S"} for index in indexes for part in ("PK", "SK")]


def _index(name: str) -> dict[str, Any]:
    """Keys only: an acquire must not pay for writes to four indexes."""
    return {"IndexName": name, "KeySchema": _key_schema(name), "Projection": {"ProjectionType": "KEYS_ONLY"}}


TABLE: Mapping[str, Any] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": _attributes("", *INDEXES),
    "KeySchema": _key_schema(),
    "GlobalSecondaryIndexes": [_index(name) for name in INDEXES],
}


class DynamoDBTable:
    def __init__(self, deliver: Deliverer) -> None:
        self._deliver = deliver
        self._versions = Versions(deliver)
        self._named = {"TableName": deliver.table}

    def ping_plan(self) -> Plan[None]:
        yield from self._versions.check_plan()

    def setup_plan(self) -> Plan[None]:
        """Create what is missing, and wait until all of it can be used. Existing parts stay as they are."""
        version = None
        if (yield from self._describe_plan()) is not None:
            yield from self._wait_plan()
            version = yield from self._versions.check_plan()
        yield from self.create_missing_plan()
        if version is None:
            yield from self._versions.write_plan()

    def exists_plan(self) -> Plan[bool]:
        """An error if the table's keys are neither headgate's nor zae-limiter's."""
        description = yield from self._describe_plan()
        if description is not None:
            self._check_keys(description)
        return description is not None

    def create_missing_plan(self) -> Plan[None]:
        """The table itself, whatever the layout of its items."""
        if (yield from self._describe_plan()) is None:
            create = {**self._named, **TABLE, "StreamSpecification": STREAM}
            yield from self._deliver.one_plan(Send("CreateTable", create), _BUSY)
        description = yield from self._wait_plan()
        self._check_keys(description)
        for index in INDEXES:
            while index not in _indexes(description):
                create = {"GlobalSecondaryIndexUpdates": [{"Create": _index(index)}]}
                done = yield from self._update_plan(AttributeDefinitions=_attributes("", index), **create)
                description = yield from self._wait_plan(index if done else None)
        while not description.get("StreamSpecification", {}).get("StreamEnabled"):
            yield from self._update_plan(StreamSpecification=STREAM)
            description = yield from self._wait_plan()
        yield from self._expire_plan()

    def _describe_plan(self) -> Plan[Mapping[str, Any] | None]:
        result = yield from self._deliver.one_plan(
            Send("DescribeTable", self._named, repeatable=True), frozenset({"ResourceNotFound"})
        )
        if isinstance(result, Failed):
            self._deliver.gone += 1
            return None
        description: Mapping[str, Any] = result["Table"]
        return description

    def _update_plan(self, operation: str = "UpdateTable", **change: Any) -> Plan[bool]:
        """False if another client is changing the table, so that it must be tried again."""
        send = Send(operation, {**self._named, **change}, repeatable=True)
        result = yield from self._deliver.one_plan(send, _BUSY | {"Validation"})
        if not isinstance(result, Failed):
            return True
        if result.code == "Validation" and not re.search("already|duplicate", result.message):
            raise ValidationError(f"table {self._deliver.table!r} cannot be changed: {result.message}")
        return result.code == "Validation"

    def _wait_plan(self, index: str | None = None) -> Plan[Mapping[str, Any]]:
        """The description, once the table can be used and changed. `index`: one that must exist by then."""
        waited, pause = 0.0, _FIRST_PAUSE
        while True:
            yield from MoreTime()
            description = yield from self._describe_plan()
            busy = "nothing of it yet" if description is None else _busy(description, index)
            if description is not None and not busy:
                return description
            if waited >= _PATIENCE_SECONDS:
                raise RateLimiterUnavailable(
                    f"table {self._deliver.table!r} is still not ready after {waited:.0f} seconds ({busy}): call setup "
                    "again later"
                )
            yield from Sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, _LONGEST_PAUSE)

    def _check_keys(self, description: Mapping[str, Any]) -> None:
        wanted = {"": _key_schema(), **{name: _key_schema(name) for name in INDEXES}}
        found = {"": description["KeySchema"], **_indexes(description)}
        for name, schema in found.items():
            if name in wanted and _in_order(schema) != _in_order(wanted[name]):
                part = f"its index {name}" if name else "it"
                raise ValidationError(
                    f"table {self._deliver.table!r} in {self._deliver.settings.where} is not one of headgate's: {part} "
                    f"has the keys {_in_order(schema)}, not {_in_order(wanted[name])}. Use another table"
                )
        stream = description.get("StreamSpecification", {})
        if stream.get("StreamEnabled") and stream.get("StreamViewType") != STREAM["StreamViewType"]:
            raise ValidationError(
                f"the stream of table {self._deliver.table!r} has {stream.get('StreamViewType')}, but usage needs "
                f"{STREAM['StreamViewType']}: disable the stream, then call setup again"
            )

    def _expire_plan(self) -> Plan[None]:
        result = yield from self._deliver.read_plan("DescribeTimeToLive")
        found = result["TimeToLiveDescription"]
        if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
            if found.get("AttributeName") != TTL["AttributeName"]:
                raise ValidationError(
                    f"items of table {self._deliver.table!r} expire by {found.get('AttributeName')!r} and must expire "
                    f"by {TTL['AttributeName']!r}: disable its time to live, then call setup again"
                )
            return
        while not (yield from self._update_plan("UpdateTimeToLive", TimeToLiveSpecification=TTL)):
            yield from self._wait_plan()


def _indexes(description: Mapping[str, Any]) -> dict[str, Sequence[Mapping[str, str]]]:
    return {index["IndexName"]: index["KeySchema"] for index in description.get("GlobalSecondaryIndexes") or ()}


def _in_order(schema: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(part["AttributeName"] for part in sorted(schema, key=lambda part: part["KeyType"]))


def _busy(description: Mapping[str, Any], index: str | None) -> str:
    """The part that cannot be used yet."""
    if description["TableStatus"] != "ACTIVE":
        return f"the table is {description['TableStatus']}"
    for found in description.get("GlobalSecondaryIndexes") or ():
        if found.get("IndexStatus", "ACTIVE") != "ACTIVE":
            return f"index {found['IndexName']} is {found['IndexStatus']}"
    return f"index {index} is missing" if index and index not in _indexes(description) else ""
