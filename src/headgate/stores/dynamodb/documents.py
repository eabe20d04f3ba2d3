"""Records as items: which item a record is kept in, and how its value is spelled there.

Items are flat: an entity's fields and the numbers of limits are attributes of their own, which other tools can read.
Two kinds of records have no item. That an entity is a child of another follows from the entity, and that it has limits
of its own on a resource from those limits; the indexes list both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from ...core.errors import ValidationError
from ...core.records import ABSENT, Record
from ...core.units import shown
from . import keys
from .attributes import item_of, values_of
from .exchange import Attributes, Item

Values: TypeAlias = "dict[str, str | int | Decimal | bool | None]"
ItemKey: TypeAlias = "tuple[str, str]"  # PK and SK

EXPIRES = "expires_at_ms"


class Home:
    """The item of a record.

    `derived`: it is another record's, from which this one follows. `written_once`: its key is new each time, so that
    nobody has to look whether there is one.
    """

    version_attribute = "version"
    derived = written_once = False

    def __init__(self, key: str, ns: str, pk: str, sk: str) -> None:
        self.key = key
        self.ns = ns
        self.pk = pk
        self.sk = sk

    @property
    def item_key(self) -> ItemKey:
        return self.pk, self.sk

    def indexes(self) -> dict[str, str]:
        """Under what the item is found in the indexes."""
        return {"GSI4PK": self.ns, "GSI4SK": self.pk}

    def item(
        self, value: Mapping[str, Any], version: int, expires_at_ms: int | None = None, now_ms: int = 0
    ) -> dict[str, Attributes]:
        values: Values = {"PK": self.pk, "SK": self.sk, **self.indexes(), **self.encode(value)}
        values[self.version_attribute] = version
        if expires_at_ms is not None:
            # DynamoDB deletes by its own clock, whatever clock the limiter was given, and never too early.
            values |= {EXPIRES: expires_at_ms, "ttl": int(time.time()) + -(-(expires_at_ms - now_ms) // 1000) + 1}
        return item_of(values)

    def record(self, item: Item | None, now_ms: int) -> Record | None:
        """What the item says, or None if there is no such record (any more)."""
        values = {} if item is None else values_of(item)
        version = self.known_version(values, now_ms)
        try:
            if version is None:
                raise ValueError(f"{self.version_attribute} is {shown(values.get(self.version_attribute))}")
            value = self.decode(values) if version else None
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            return Record(
                self.key, {}, version or ABSENT, f"its item {self.pk!r} {self.sk!r} cannot be read ({error!r})"
            )
        return None if value is None else Record(self.key, value, version)

    def known_version(self, values: Mapping[str, Any], now_ms: int) -> int | None:
        """None: it cannot be read."""
        try:
            version = self.version_of(values, now_ms)
        except (ValueError, TypeError, ArithmeticError):
            return None
        written = values.get(self.version_attribute, ABSENT)
        return version if type(written) is int and written >= ABSENT else None

    def version_of(self, values: Mapping[str, Any], now_ms: int) -> int:
        """0: there is no such record. An expired one does not exist."""
        if values.get(EXPIRES, now_ms + 1) <= now_ms:
            return 0
        return int(values.get(self.version_attribute, 0))

    def condition(self, expected: int) -> str:
        """That the record has this version (#version, :version), or with 0 that there is none."""
        if expected:
            return "#version = :version AND (attribute_not_exists(#expires) OR #expires > :now)"
        return "attribute_not_exists(#version) OR #expires <= :now"

    def encode(self, value: Mapping[str, Any]) -> Values:
        raise NotImplementedError

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The value, or None if there is no such record although there is the item."""
        raise NotImplementedError

    def _fields(self, value: Mapping[str, Any], *known: str) -> Mapping[str, Any]:
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise ValidationError(f"record {self.key!r} has no field {unknown[0]!r}, only {', '.join(known)}")
        return value


class EntityHome(Home):
    def __init__(self, key: str, ns: str, entity_id: str) -> None:
        super().__init__(key, ns, keys.pk_entity(ns, entity_id), keys.META)
        self.entity_id = entity_id

    def indexes(self) -> dict[str, str]:
        return super().indexes() | {"GSI2PK": keys.gsi2_pk_entities(self.ns), "GSI2SK": self.entity_id}

    def encode(self, value: Mapping[str, Any]) -> Values:
        self._fields(value, "name", "parent_id", "cascade", "metadata")
        parent_id = value.get("parent_id")
        values: Values = {
            "entity_id": self.entity_id,
            "name": value.get("name"),
            "parent_id": parent_id,
            "cascade": value.get("cascade", False),
            "metadata": json.dumps(value.get("metadata", {})),
        }
        if parent_id is not None:
            values |= {"GSI1PK": keys.gsi1_pk(self.ns, parent_id), "GSI1SK": keys.gsi1_sk(self.entity_id)}
        return values

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        return {
            "name": values.get("name"),
            "parent_id": values.get("parent_id"),
            "cascade": values["cascade"],
            "metadata": json.loads(values["metadata"]),
        }


class ChildHome(EntityHome):
    """That an entity has a parent."""

    derived = True

    def __init__(self, key: str, ns: str, parent_id: str, entity_id: str) -> None:
        super().__init__(key, ns, entity_id)
        self.parent_id = parent_id

    def indexes(self) -> dict[str, str]:
        return {"GSI1PK": keys.gsi1_pk(self.ns, self.parent_id), "GSI1SK": keys.gsi1_sk(self.entity_id)}

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        return {} if values.get("parent_id") == self.parent_id else None


class LimitsHome(Home):
    """Limits of the system, or of a resource."""

    version_attribute = "config_version"

    def __init__(self, key: str, ns: str, resource: str | None = None) -> None:
        pk = keys.pk_system(ns) if resource is None else keys.pk_resource(ns, resource)
        super().__init__(key, ns, pk, keys.CONFIG)
        self.resource = resource

    def encode(self, value: Mapping[str, Any]) -> Values:
        self._fields(value, "limits", "inherit", "on_unavailable")
        limits = value["limits"]
        values: Values = {
            "resource": self.resource,
            "limit_names": ",".join(limit["name"] for limit in limits),
            "inherit": value.get("inherit"),
            "on_unavailable": value.get("on_unavailable"),
        }
        for limit in limits:
            numbers = _SLOT_NUMBERS if "slots" in limit else _NUMBERS
            name = self._fields(limit, "name", *numbers)["name"]
            values |= {f"l_{name}_{suffix}": _decimal(limit[field]) for field, suffix in numbers.items()}
        return values

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        names = str.split(values["limit_names"], ",") if values["limit_names"] != "" else []
        value: dict[str, Any] = {"limits": [_limit(name, values) for name in names]}
        return value | {field: values[field] for field in ("inherit", "on_unavailable") if field in values}


_NUMBERS = {"capacity": "cp", "refill_amount": "ra", "refill_period_seconds": "rp"}
_SLOT_NUMBERS = {"slots": "sl", "ttl_seconds": "tl"}


def _limit(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    numbers = _SLOT_NUMBERS if f"l_{name}_sl" in values else _NUMBERS
    return {"name": name, **{field: _plain(values[f"l_{name}_{suffix}"]) for field, suffix in numbers.items()}}


def _decimal(number: float) -> int | Decimal:
    """A float is the decimal that it is written as, as everywhere."""
    return number if isinstance(number, int) else Decimal(str(number))


def _plain(number: int | Decimal) -> int | float:
    return number if isinstance(number, int) else float(number)


class EntityLimitsHome(LimitsHome):
    """Limits of an entity on a resource, or on all of them (keys.DEFAULT)."""

    def __init__(self, key: str, ns: str, entity_id: str, resource: str) -> None:
        super().__init__(key, ns, resource or keys.DEFAULT)
        self.pk, self.sk = keys.pk_entity(ns, entity_id), keys.sk_config(self.resource)
        self.entity_id = entity_id

    def indexes(self) -> dict[str, str]:
        resource = self.resource or keys.DEFAULT
        return super().indexes() | {
            "GSI2PK": keys.gsi2_pk_configs(self.ns),
            "GSI2SK": keys.gsi2_sk_config(self.entity_id, resource),
            "GSI3PK": keys.gsi3_pk_config(self.ns, resource),
            "GSI3SK": self.entity_id,
        }

    def encode(self, value: Mapping[str, Any]) -> Values:
        return {"entity_id": self.entity_id, **super().encode(value)}


class CustomHome(EntityLimitsHome):
    """That an entity has limits of its own on a resource."""

    derived = True

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        return {}


class RevisionHome(Home):
    def __init__(self, key: str, ns: str) -> None:
        super().__init__(key, ns, keys.pk_system(ns), keys.REVISION)

    def encode(self, value: Mapping[str, Any]) -> Values:
        return {"revision": self._fields(value, "revision")["revision"]}

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"revision": values["revision"]}


class OtherHome(Home):
    """A record of any other kind: JSON."""

    def __init__(self, key: str, ns: str, name: str) -> None:
        super().__init__(key, ns, keys.pk_record(ns), keys.sk_record(name))

    def encode(self, value: Mapping[str, Any]) -> Values:
        return {"value": json.dumps(value)}

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        value: dict[str, Any] = json.loads(values["value"])
        return value


class AuditHome(OtherHome):
    """An event, or with an entity the same once more, to be found by it."""

    written_once = True

    def __init__(self, key: str, ns: str, event: str, entity_id: str = "") -> None:
        super().__init__(key, ns, event)
        self.pk = keys.pk_audit(ns, entity_id)
        self.sk = keys.sk_audited(event) if entity_id else keys.sk_audit(event)


class NamespaceHome(Home):
    """A namespace. One without a version has its first."""

    def __init__(self, key: str, name: str) -> None:
        super().__init__(key, keys.REGISTRY, keys.pk_system(keys.REGISTRY), keys.sk_namespace(name))
        self.name = name

    def version_of(self, values: Mapping[str, Any], now_ms: int) -> int:
        return int(values.get(self.version_attribute, 1)) if values else 0

    def condition(self, expected: int) -> str:
        if expected == 1:
            return "attribute_exists(PK) AND (attribute_not_exists(#version) OR #version = :version)"
        return "#version = :version" if expected else "attribute_not_exists(PK)"

    def encode(self, value: Mapping[str, Any]) -> Values:
        self._fields(value, "id", "status", "created_at_ms", "deleted_at_ms")
        return {
            "namespace": self.name,
            "namespace_id": value["id"],
            "status": value["status"],
            "created_at_ms": value["created_at_ms"],
            "deleted_at_ms": value["deleted_at_ms"],
        }

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        return {
            "id": values["namespace_id"],
            "status": values["status"],
            "created_at_ms": values["created_at_ms"],
            "deleted_at_ms": values.get("deleted_at_ms"),
        }


def home_of(key: str, ns: str) -> Home:
    """Where the record of a key is kept, in a namespace with the id `ns`."""
    rest = name_in(key)
    words = rest.split("#")
    home = _limits_home(key, ns, words) or _entity_home(key, ns, words)
    if home is not None:
        return home
    match words:
        case ["revision"]:
            return RevisionHome(key, ns)
        case ["namespace", name] if name and ns == keys.REGISTRY:
            return NamespaceHome(key, name)
        case ["entity" | "child" | "limits" | "custom" | "audit" | "audited", _, *_]:
            raise ValidationError(f"record key {key!r} is none that this store has a place for")
    return OtherHome(key, ns, rest)


def _limits_home(key: str, ns: str, words: list[str]) -> Home | None:
    match words:
        case ["limits", "system"]:
            return LimitsHome(key, ns)
        case ["limits", "resource", resource] if resource:
            return LimitsHome(key, ns, resource)
        case ["limits", "entity", entity_id, resource] if entity_id:
            return EntityLimitsHome(key, ns, entity_id, resource)
        case ["custom", resource, entity_id] if entity_id:
            return CustomHome(key, ns, entity_id, resource)
    return None


def _entity_home(key: str, ns: str, words: list[str]) -> Home | None:
    match words:
        case ["entity", entity_id] if entity_id:
            return EntityHome(key, ns, entity_id)
        case ["child", parent_id, entity_id] if parent_id and entity_id:
            return ChildHome(key, ns, parent_id, entity_id)
        case ["audit", event] if event:
            return AuditHome(key, ns, event)
        case ["audited", entity_id, event] if entity_id and event:
            return AuditHome(key, ns, event, entity_id)
    return None


def namespace_of(names: Sequence[str]) -> str:
    """The namespace of keys or prefixes, which is the same for all of one call."""
    namespaces = {name.partition("/")[0] if "/" in name else "" for name in names}
    if len(namespaces) != 1 or "" in namespaces:
        raise ValidationError(f"records {', '.join(names[:3])} must be of one namespace: a key is namespace/name")
    return namespaces.pop()


def name_in(key: str) -> str:
    return key.partition("/")[2]
