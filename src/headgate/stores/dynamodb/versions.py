"""Which layout the items of a table have, and whether this code can use it.

One record for a table, in the registry: `schema_version`, the number of the layout, and `min_client_schema`, the least
that a client must know to use it. All namespaces of a table have one layout, since its indexes are of one, and a
migration is of the whole table. The record is beside the namespaces' names, so that one request reads both.

A layout that an older client can still use raises `schema_version` alone. zae-limiter keeps its own record under the
same key, or, before its release 0.10, in a partition of its own: such a table is foreign, and is never marked as ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from ...core.errors import ValidationError
from ...plan import Plan
from . import keys
from .attributes import item_of, value_of
from .deliver import Deliverer, Denied
from .documents import ItemKey
from .exchange import Attributes, Failed, Item, Send
from .reads import read_items_plan

SCHEMA = 2  # what this code writes
FILLING = 1  # a migration is copying into the table, and has not finished

VERSION_KEY: ItemKey = (keys.pk_system(keys.REGISTRY), keys.VERSION)
OLDER_VERSION_KEY: ItemKey = ("SYSTEM#", keys.VERSION)


class Version(NamedTuple):
    schema: int
    min_client: int


class Foreign(NamedTuple):
    """The table holds items that headgate has not written. `schema`: the version that zae-limiter keeps in it."""

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
        """The table's version; an error if this code cannot use it. None: nobody has used the table yet.

        `found`: items that were read already, the version's among them if it exists.
        """
        return self.checked((yield from self.read_plan(found)))

    def read_plan(self, found: Mapping[ItemKey, Item] | None = None) -> Plan[Found]:
        if found is None:
            found = yield from read_items_plan(self._deliver, [VERSION_KEY])
        item = found.get(VERSION_KEY)
        if item is not None:
            return _version(item)
        # By itself: whoever may use one namespace only may read nothing else but the registry.
        older = yield from read_items_plan(self._deliver, [OLDER_VERSION_KEY])
        if older:
            return _version(older[OLDER_VERSION_KEY])
        if not (yield from self._has_items_plan()):
            return None
        # Somebody may have marked the table since it was read: no item of ours comes before the version.
        found = yield from read_items_plan(self._deliver, [VERSION_KEY])
        return _version(found[VERSION_KEY]) if found else Foreign()

    def _has_items_plan(self) -> Plan[bool]:
        scan = {"TableName": self._deliver.table, "Limit": 1, "ProjectionExpression": "PK", "ConsistentRead": True}
        try:
            reply = yield from self._deliver.one_plan(Send("Scan", scan, repeatable=True))
        except Denied as error:
            raise Denied(
                f"table {self._deliver.table!r} has no version record, and these credentials may not look whether it "
                f"is empty: call limiter.setup() once with those of an administrator ({error})"
            ) from None
        assert not isinstance(reply, Failed)
        return bool(reply["Items"])

    def write_plan(self, schema: int = SCHEMA) -> Plan[None]:
        """Say which layout the table has, unless it says so already."""
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
                f"run `headgate aws migrate --name {table}`, which copies a table of zae-limiter's into a new one"
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
    """zae-limiter's record has a text as its version, in releases before 0.6 inside a map."""
    item = item["data"]["M"] if "data" in item else item
    schema, min_client = item.get("schema_version", {}), item.get("min_client_schema", {})
    if "N" in schema and "N" in min_client:
        return Version(value_of(schema), value_of(min_client))
    return Foreign(schema.get("S"))
