"""The cold side of a store: small JSON documents with a version, and the changes made to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .decide import State
from .errors import CorruptState
from .units import shown

T = TypeVar("T")

ABSENT = 0  # as an expected version: the record must not exist


class Page(list[T], Generic[T]):
    """A list that knows where the next one starts: pass `cursor` back, until it is None.

    `corrupt` says what is stored there too and cannot be read.
    """

    def __init__(self, items: list[T], cursor: str | None = None, corrupt: Sequence[CorruptState] = ()) -> None:
        super().__init__(items)
        self.cursor = cursor
        self.corrupt = list(corrupt)


@dataclass(frozen=True, slots=True)
class Record:
    """`flaw`: why it cannot be used, if it is corrupt; then its value is what can be read of it."""

    key: str
    value: dict[str, Any]
    version: int
    flaw: str = ""

    @property
    def error(self) -> CorruptState:
        return CorruptState(self.flaw, record_key=self.key)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record. `expected` is the version it must have (ABSENT: none), or None for any."""

    key: str
    value: dict[str, Any]
    expected: int | None = None
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but let the other changes happen only if this record has this version."""

    key: str
    expected: int


Change = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class BucketRow:
    """All buckets and slots of an entity on a resource, settled."""

    entity_id: str
    resource: str
    buckets: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of the store has deleted or corrected.

    `leases`: how many holders of slots had run out of time, but for those of headgate's own limits.
    """

    buckets: int = 0
    records: int = 0
    leases: int = 0


@dataclass(frozen=True, slots=True)
class Entity:
    """What is limited: a tenant, a user, an API key, a vendor. It may have a parent."""

    entity_id: str
    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    version: int = 0

    @property
    def id(self) -> str:
        return self.entity_id

    def as_dict(self) -> dict[str, Any]:
        return {
            "entity_id": self.entity_id,
            "name": self.name,
            "parent_id": self.parent_id,
            "cascade": self.cascade,
            "metadata": self.metadata,
            "version": self.version,
        }


def read_record(key: str, text: Any, version: Any) -> Record:
    """A record whose value is stored as JSON. One that cannot be read says why, and has no version if that is why."""
    sound = type(version) is int and version >= 0
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        return Record(key, {}, version if sound else ABSENT, f"its value is no JSON ({error})")
    if not isinstance(value, dict):
        return Record(key, {}, version if sound else ABSENT, f"its value is {shown(value)}, not an object")
    return Record(key, value, version) if sound else Record(key, value, ABSENT, f"its version is {shown(version)}")
