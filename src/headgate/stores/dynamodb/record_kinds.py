"""The kinds of records, as data: how a record is named, which item stores it, its indexes and its attributes.

Items are flat: the fields of an entity and the numbers of a limit are attributes of their own, which other tools can
read. Two kinds have no item of their own: `child` follows from the entity, and `custom` from the limits of an entity.
The indexes list both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import ValidationError
from ...core.records import ABSENT
from . import keys
from .items import ItemKey

TABLE = ""  # instead of an index
_REQUIRED, _LEFT_OUT = object(), object()
_ALERTS = "al"


class Column(NamedTuple):
    """A field of a value and the attribute that stores it.

    `default`: of a value without the field. `absent`: what is read from an item without the attribute.
    """

    field: str
    attribute: str
    default: Any = _REQUIRED
    absent: Any = _REQUIRED
    as_json: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def write(self, value: Mapping[str, Any], record_key: str) -> dict[str, Any]:
        found = value[self.field] if self.default is _REQUIRED else value.get(self.field, self.default)
        return {self.attribute: json.dumps(found) if self.as_json and found is not None else found}

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if self.attribute not in values and self.absent is not _REQUIRED:
            return {} if self.absent is _LEFT_OUT else {self.field: self.absent}
        found = values[self.attribute]
        return {self.field: json.loads(found) if self.as_json else found}


class LimitColumns(NamedTuple):
    """The list of limits: their names in order, and an attribute for each number of each limit. A quota has some."""

    tokens: Mapping[str, str]
    slots: Mapping[str, str]
    quota: Mapping[str, str]

    @property
    def fields(self) -> tuple[str, ...]:
        return ("limits",)

    def write(self, value: Mapping[str, Any], record_key: str) -> dict[str, Any]:
        limits = value["limits"]
        values: dict[str, Any] = {"limit_names": ",".join(limit["name"] for limit in limits)}
        for limit in limits:
            numbers = self.slots if "slots" in limit else self.quota if "amount" in limit else self.tokens
            check_fields(limit, ("name", *numbers, "alert_at"), record_key)
            if "alert_at" in limit:
                values[f"l_{limit['name']}_{_ALERTS}"] = json.dumps(limit["alert_at"])
            wanted = limit if numbers is self.quota else numbers
            values |= {
                f"l_{limit['name']}_{suffix}": _decimal(limit[field])
                for field, suffix in numbers.items()
                if field in wanted
            }
        return values

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        names = str.split(values["limit_names"], ",") if values["limit_names"] != "" else []
        return {"limits": [self._limit(name, values) for name in names]}

    def _limit(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        start = f"l_{name}_"
        if f"{start}{self.quota['amount']}" in values:
            numbers = {field: suffix for field, suffix in self.quota.items() if f"{start}{suffix}" in values}
        else:
            numbers = dict(self.slots if f"{start}{self.slots['slots']}" in values else self.tokens)
        alerts = values.get(f"{start}{_ALERTS}")
        return {
            "name": name,
            **{field: _plain(values[f"{start}{suffix}"]) for field, suffix in numbers.items()},
            **({"alert_at": json.loads(alerts)} if alerts else {}),
        }


class JsonColumn(NamedTuple):
    """The whole value, as JSON."""

    attribute: str = "value"
    fields: tuple[str, ...] = ()

    def write(self, value: Mapping[str, Any], record_key: str) -> dict[str, Any]:
        return {self.attribute: json.dumps(value)}

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(values[self.attribute])
        return value


Columns: TypeAlias = "Sequence[Column | LimitColumns | JsonColumn]"


def _decimal(value: float | str) -> int | str | Decimal:
    """A float is stored as the decimal it is written as."""
    return Decimal(str(value)) if isinstance(value, float) else value


def _plain(value: int | str | Decimal) -> int | str | float:
    return float(value) if isinstance(value, Decimal) else value


def check_fields(value: Mapping[str, Any], known: Sequence[str], record_key: str) -> None:
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise ValidationError(f"record {record_key!r} has no field {unknown[0]!r}, only {', '.join(known)}")


class RecordKind(NamedTuple):
    """Records that are stored alike. Its keys are templates with the {fields} of its name.

    `indexes`: partition and sort key, for items that have all their fields; every item is in GSI4 too. `listed`: the
    index, or TABLE, that lists the names which begin alike up to this field. `repeats`: fields of the name that are
    attributes too. `empty`: what keys have for a field that is empty in the name. `derived`: the item belongs to a
    record of another kind. `written_once`: every record has a new key, so a write does not have to read first.
    `implicit_version`: the version of an item that has none.
    """

    name: str
    pk: str
    sk: str
    columns: Columns
    indexes: Mapping[str, tuple[str, str]] = {}
    listed: Mapping[str, str] = {}
    repeats: Sequence[str] = ()
    empty: Mapping[str, str] = {}
    version: str = "version"
    implicit_version: int = ABSENT
    derived: bool = False
    written_once: bool = False
    registry_only: bool = False

    def match(self, words: Sequence[str], *, to_the_end: bool = True) -> dict[str, str] | None:
        """The fields of a name, or of the beginning of one, whose last field may be cut anywhere."""
        pattern = self.name.split("#")
        fits = len(words) == len(pattern) or (len(words) < len(pattern) and not to_the_end)
        fields = _matched(pattern, words) if fits else None
        if fields is None:
            return None
        whole = list(fields) if to_the_end else list(fields)[:-1]
        return fields if all(fields[field] or field in self.empty for field in whole) else None

    def key_templates(self, index: str) -> tuple[str, str]:
        if index == TABLE:
            return self.pk, self.sk
        return self.indexes.get(index, ("{ns}", self.pk))

    def name_of(self, item_key: ItemKey, given: Mapping[str, str]) -> str:
        """The name of the record in an item. `given`: fields that its key does not have."""
        fields = dict(given)
        for template, text in zip((self.pk, self.sk), item_key):
            found = re.fullmatch(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*)", re.escape(template)), text, re.DOTALL)
            fields |= found.groupdict() if found else {}
        return self.name.format(**{name: "" if self.empty.get(name) == text else text for name, text in fields.items()})


def _matched(pattern: Sequence[str], words: Sequence[str]) -> dict[str, str] | None:
    fields: dict[str, str] = {}
    for expected, word in zip(pattern, words):
        if expected.startswith("{"):
            fields[expected[1:-1]] = word
        elif word != expected:
            return None
    return fields


_NS, _ENTITY, _RESOURCE, _EVENT = "{ns}", "{entity_id}", "{resource}", "{event}"

ENTITY = RecordKind(
    "entity#{entity_id}",
    keys.pk_entity(_NS, _ENTITY),
    keys.META,
    (
        Column("name", "name", default=None, absent=None),
        Column("parent_id", "parent_id", default=None, absent=None),
        Column("cascade", "cascade", default=False),
        Column("metadata", "metadata", default={}, as_json=True),
    ),
    indexes={
        keys.GSI1: (keys.gsi1_pk(_NS, "{parent_id}"), keys.gsi1_sk(_ENTITY)),
        keys.GSI2: (keys.gsi2_pk_entities(_NS), _ENTITY),
    },
    listed={"entity_id": keys.GSI2},
    repeats=("entity_id",),
)
CHILD = ENTITY._replace(name="child#{parent_id}#{entity_id}", listed={"entity_id": keys.GSI1}, derived=True)

SYSTEM_LIMITS = RecordKind(
    "limits#system",
    keys.pk_system(_NS),
    keys.CONFIG,
    (
        LimitColumns(
            tokens={"capacity": "cp", "refill_amount": "ra", "refill_period_seconds": "rp"},
            slots={"slots": "sl", "ttl_seconds": "tl"},
            quota={
                "amount": "am",
                "per": "pr",
                "tz": "tz",
                "at": "at",
                "on": "on",
                "cron": "cr",
                "seconds_from_first_use": "fu",
            },
        ),
        Column("schedule", "schedule", default=None, absent=_LEFT_OUT, as_json=True),
        Column("inherit", "inherit", default=None, absent=_LEFT_OUT),
        Column("on_unavailable", "on_unavailable", default=None, absent=_LEFT_OUT),
    ),
    version="config_version",
)
RESOURCE_LIMITS = SYSTEM_LIMITS._replace(
    name="limits#resource#{resource}",
    pk=keys.pk_resource(_NS, _RESOURCE),
    listed={"resource": keys.GSI4},
    repeats=("resource",),
)
ENTITY_LIMITS = SYSTEM_LIMITS._replace(
    name="limits#entity#{entity_id}#{resource}",
    pk=keys.pk_entity(_NS, _ENTITY),
    sk=keys.sk_config(_RESOURCE),
    indexes={
        keys.GSI2: (keys.gsi2_pk_configs(_NS), keys.gsi2_sk_config(_ENTITY, _RESOURCE)),
        keys.GSI3: (keys.gsi3_pk_config(_NS, _RESOURCE), _ENTITY),
    },
    listed={"entity_id": keys.GSI2, "resource": TABLE},
    repeats=("entity_id", "resource"),
    empty={"resource": keys.DEFAULT},
)
CUSTOM = ENTITY_LIMITS._replace(name="custom#{resource}#{entity_id}", listed={"entity_id": keys.GSI3}, derived=True)

REVISION = RecordKind("revision", keys.pk_system(_NS), keys.REVISION, (Column("revision", "revision"),))
AUDIT_EVENT = RecordKind(
    "audit#{event}",
    keys.pk_audit(_NS),
    keys.sk_audit(_EVENT),
    (JsonColumn(),),
    listed={"event": TABLE},
    written_once=True,
)
AUDIT_EVENT_OF_ENTITY = AUDIT_EVENT._replace(
    name="audited#{entity_id}#{event}", pk=keys.pk_audit(_NS, _ENTITY), sk=keys.sk_audited(_EVENT)
)
NAMESPACE = RecordKind(
    "namespace#{namespace}",
    keys.pk_system(_NS),
    keys.sk_namespace("{namespace}"),
    (
        Column("id", "namespace_id"),
        Column("status", "status"),
        Column("created_at_ms", "created_at_ms"),
        Column("deleted_at_ms", "deleted_at_ms", default=None, absent=None),
    ),
    listed={"namespace": TABLE},
    repeats=("namespace",),
    implicit_version=1,
    registry_only=True,
)
# Of any other name, which may contain #.
OTHER = RecordKind("{name}", keys.pk_record(_NS), keys.sk_record("{name}"), (JsonColumn(),), listed={"name": TABLE})

KINDS = (
    *(ENTITY, CHILD, SYSTEM_LIMITS, RESOURCE_LIMITS, ENTITY_LIMITS, CUSTOM, REVISION),
    *(AUDIT_EVENT, AUDIT_EVENT_OF_ENTITY, NAMESPACE),
)
RESERVED = {kind.name.partition("#")[0] for kind in KINDS if "#" in kind.name and not kind.registry_only}
