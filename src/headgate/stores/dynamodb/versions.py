"""Which layout the items of a table have, and whether this code can use it.

One record for a table, in the registry: `schema_version`, the number of the layout, and `min_client_schema`, the least
that a client must know to use it. All namespaces of a table have one layout, since its indexes are of one, and a
migration is of the whole table. The record is beside the namespaces' names, so that one request reads both.

A layout that an older client can still use raises `schema_version` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...core.errors import ValidationError
from ...plan import Plan
from . import keys
from .attributes import item_of, value_of
from .deliver import Deliverer
from .documents import ItemKey
from .exchange import Attributes, Failed, Item, Send
from .reads import read_items_plan

SCHEMA = 2  # what this code writes
OLDER = 1  # one item for each bucket, and no namespaces (migrations/older.py)

VERSION_KEY: ItemKey = (keys.pk_system(keys.REGISTRY), keys.VERSION)
OLDER_VERSION_KEY: ItemKey = ("SYSTEM#", keys.VERSION)
OLDER_KEYS = ("ENTITY#", "RESOURCE#", "AUDIT#", "SYSTEM#")  # no id of a namespace has a #
_GLANCE = 25


class Version(NamedTuple):
    schema: int
    min_client: int


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
        version = yield from self.read_plan(found)
        if version is not None:
            self.check(version)
        return version

    def read_plan(self, found: Mapping[ItemKey, Item] | None = None) -> Plan[Version | None]:
        if found is None:
            found = yield from read_items_plan(self._deliver, [VERSION_KEY])
        item = found.get(VERSION_KEY)
        if item is not None:
            return Version(value_of(item["schema_version"]), value_of(item["min_client_schema"]))
        # By itself: whoever may use one namespace only may read nothing else but the registry.
        older = yield from read_items_plan(self._deliver, [OLDER_VERSION_KEY])
        return Version(OLDER, OLDER) if older else None

    def look_plan(self) -> Plan[Version | None]:
        """The same for whoever is going to write a version: a table may have been used without one, so look at keys."""
        version = yield from self.read_plan()
        if version is None:
            scan = {"TableName": self._deliver.table, "Limit": _GLANCE, "ProjectionExpression": "PK"}
            reply = yield from self._deliver.one_plan(Send("Scan", scan, repeatable=True))
            assert not isinstance(reply, Failed)
            if any(item["PK"]["S"].startswith(OLDER_KEYS) for item in reply["Items"]):
                return Version(OLDER, OLDER)
        return version

    def write_plan(self, schema: int = SCHEMA) -> Plan[None]:
        """Say which layout the table has, unless it says so already."""
        put = {
            "TableName": self._deliver.table,
            "Item": version_item(schema),
            "ConditionExpression": "attribute_not_exists(PK)",
        }
        yield from self._deliver.one_plan(Send("PutItem", put, repeatable=True))

    def check(self, version: Version) -> None:
        table = self._deliver.table
        if version.schema < SCHEMA:
            raise ValidationError(
                f"table {table!r} has layout {version.schema}, this headgate uses layout {SCHEMA}: stop the clients of "
                f"the older one, then run `headgate aws migrate --name {table}`"
            )
        if version.min_client > SCHEMA:
            raise ValidationError(
                f"table {table!r} has layout {version.schema}, this headgate knows layouts up to {SCHEMA}: upgrade "
                "headgate"
            )
