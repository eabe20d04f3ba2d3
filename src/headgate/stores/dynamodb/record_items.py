"""Records as items: the item of a record, written and read as its kind says, and where records are listed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ...core.errors import ValidationError
from ...core.records import ABSENT, Record
from ...core.units import shown
from . import keys
from .exchange import Attributes, Item
from .items import ItemKey, item_key_of, item_of, values_of
from .record_kinds import KINDS, OTHER, RESERVED, TABLE, RecordKind, check_fields

EXPIRES = "expires_at_ms"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class RecordItem(NamedTuple):
    """The item of a record. `fields`: those of its name, as its keys have them."""

    kind: RecordKind
    record_key: str
    ns: str
    fields: Mapping[str, str]

    @classmethod
    def of(cls, kind: RecordKind, ns: str, record_key: str = "", **fields: str) -> RecordItem:
        """Of the record with these fields, in the namespace with the id `ns`."""
        return cls(kind, record_key, ns, {field: text or kind.empty.get(field, "") for field, text in fields.items()})

    @property
    def item_key(self) -> ItemKey:
        return self._filled(self.kind.pk), self._filled(self.kind.sk)

    def _filled(self, template: str, value: Mapping[str, Any] = _NOTHING) -> str:
        return template.format_map({**value, **self.fields, "ns": self.ns})

    def index_keys(self, value: Mapping[str, Any] = _NOTHING) -> dict[str, str]:
        """Its keys in the indexes, as far as its name and its value have the fields for them."""
        there = {"ns", *self.fields, *(field for field, found in value.items() if found is not None)}
        found: dict[str, str] = {}
        for index in (*self.kind.indexes, keys.GSI4):
            pk, sk = self.kind.key_templates(index)
            if there.issuperset(re.findall(r"{(\w+)}", pk + sk)):
                found |= {f"{index}PK": self._filled(pk, value), f"{index}SK": self._filled(sk, value)}
        return found

    def item(
        self, value: Mapping[str, Any], version: int, expires_at_ms: int | None = None, now_ms: int = 0
    ) -> dict[str, Attributes]:
        kind = self.kind
        known = [field for column in kind.columns for field in column.fields]
        if known:
            check_fields(value, known, self.record_key)
        pk, sk = self.item_key
        values: dict[str, Any] = {"PK": pk, "SK": sk, **self.index_keys(value), kind.version: version}
        values |= {field: self.fields[field] for field in kind.repeats}
        for column in kind.columns:
            values |= column.write(value, self.record_key)
        if expires_at_ms is not None:
            # DynamoDB deletes by its own clock, whatever clock the limiter was given, and never too early.
            values |= {EXPIRES: expires_at_ms, "ttl": int(time.time()) + -(-(expires_at_ms - now_ms) // 1000) + 1}
        return item_of(values)

    def record(self, item: Item | None, now_ms: int) -> Record | None:
        """The record in an item, or None if there is no such record, or no longer."""
        values = {} if item is None else values_of(item)
        version = self.known_version(values, now_ms)
        try:
            if version is None:
                raise ValueError(f"{self.kind.version} is {shown(values.get(self.kind.version))}")
            value = self._decoded(values) if version else None
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            pk, sk = self.item_key
            return Record(self.record_key, {}, version or ABSENT, f"its item {pk!r} {sk!r} cannot be read ({error!r})")
        return None if value is None else Record(self.record_key, value, version)

    def _decoded(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The value. A derived record has none: it exists if the item agrees with all fields of its name."""
        if self.kind.derived:
            keyed = self.kind.pk + self.kind.sk
            agrees = all(f"{{{field}}}" in keyed or values.get(field) == name for field, name in self.fields.items())
            return {} if agrees else None
        return {field: value for column in self.kind.columns for field, value in column.read(values).items()}

    def known_version(self, values: Mapping[str, Any], now_ms: int) -> int | None:
        """The version in an item; ABSENT if there is no such record, None if it cannot be read."""
        try:
            expired = values.get(EXPIRES, now_ms + 1) <= now_ms
            version = ABSENT if expired or not values else values.get(self.kind.version, self.kind.implicit_version)
            written = values.get(self.kind.version, ABSENT)
            return version if type(version) is type(written) is int and written >= ABSENT else None
        except TypeError:
            return None

    def condition(self, expected: int) -> str:
        """That the record has this version (#version, :version), or with ABSENT that there is none."""
        if self.kind.implicit_version:
            if expected == self.kind.implicit_version:
                return "attribute_exists(PK) AND (attribute_not_exists(#version) OR #version = :version)"
            return "#version = :version" if expected else "attribute_not_exists(PK)"
        if expected:
            return "#version = :version AND (attribute_not_exists(#expires) OR #expires > :now)"
        return "attribute_not_exists(#version) OR #expires <= :now"


def record_item(record_key: str, ns: str) -> RecordItem:
    """The item of the record with this key, in the namespace with the id `ns`."""
    name = name_in(record_key)
    words = name.split("#")
    for kind in _kinds(ns):
        fields = kind.match(words)
        if fields is not None:
            return RecordItem.of(kind, ns, record_key, **fields)
    if _is_reserved(words):
        raise ValidationError(f"record key {record_key!r} has an unknown form: use one of headgate.limiter.keys")
    return RecordItem.of(OTHER, ns, record_key, name=name)


class RecordList(NamedTuple):
    """Records whose names begin with `fields`, the last of which may be cut anywhere."""

    kind: RecordKind
    gsi: str
    ns: str
    fields: Mapping[str, str]

    @property
    def keys(self) -> tuple[str, str]:
        """The partition, and how the sort keys begin."""
        *_, last = self.fields
        given = {**RecordItem.of(self.kind, self.ns, **self.fields).fields, "ns": self.ns}
        pk, sk = self.kind.key_templates(self.gsi)
        start = sk.partition(f"{{{last}}}")[0]
        return pk.format_map(given), start.format_map(given) + self.fields[last]

    def item_of(self, row: Item, namespace: str) -> RecordItem:
        """The item of the record that a row of the list stands for."""
        return record_item(f"{namespace}/{self.kind.name_of(item_key_of(row), self.fields)}", self.ns)

    def position(self, item: RecordItem) -> dict[str, Attributes]:
        """The position of a record in the list, whether it still exists or not."""
        pk, sk = item.item_key
        places = {"PK": pk, "SK": sk, **item.index_keys()}
        return {name: {"S": places[name]} for name in ("PK", "SK", f"{self.gsi}PK", f"{self.gsi}SK")}


def record_list(prefix: str, ns: str) -> RecordList:
    """Where the records are listed whose keys begin with this prefix."""
    name = name_in(prefix)
    words = name.split("#")
    for kind in _kinds(ns):
        fields = kind.match(words, to_the_end=False)
        if fields and (index := kind.listed.get([*fields][-1])) is not None:
            return RecordList(kind, index, ns, fields)
    if _is_reserved(words):
        raise ValidationError(
            f"DynamoDB cannot list records by the prefix {prefix!r}: give all fields of the name but the last"
        )
    return RecordList(OTHER, TABLE, ns, {"name": name})


def _kinds(ns: str) -> Iterator[RecordKind]:
    return (kind for kind in KINDS if ns == keys.REGISTRY or not kind.registry_only)


def _is_reserved(words: Sequence[str]) -> bool:
    return len(words) > 1 and words[0] in RESERVED


def namespace_of(names: Sequence[str]) -> str:
    """The namespace of keys or prefixes, which is the same for all of one call."""
    namespaces = {name.partition("/")[0] if "/" in name else "" for name in names}
    if len(namespaces) != 1 or "" in namespaces:
        raise ValidationError(f"records {', '.join(names[:3])} must be of one namespace: a key is namespace/name")
    return namespaces.pop()


def name_in(key: str) -> str:
    return key.partition("/")[2]
