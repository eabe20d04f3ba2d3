"""The keys in Redis, and their slots in a cluster.

    headgate:{namespace}:entity#resource        all buckets of an entity on a resource (settle.lua)
    headgate:{namespace}:entity#resource#limit  the holders of slots of a concurrent limit, by expiry (row.lua)
    headgate:{namespace}:entity#resource#limit#amounts
                                                the amounts of holders of other than one slot
    headgate:{namespace}:entity#resource#limit#waiting
                                                the waiters for slots, in order (queue.lua)
    headgate:{namespace}:entity#resource##week  the usage of past hours (row.lua)
    headgate:{namespace}:records                records by key (write.lua)
    headgate:{namespace}:records:keys           their keys in order
    headgate:{namespace}:records:expiring       when they expire
    headgate:{...}:birth                        when the store was first used, for a cold start

The text in braces decides the slot. `together` says whether an entity, a tenant or the namespace shares a slot.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias

Together: TypeAlias = Literal["entity", "tenant", "namespace"]
SLOTS = 16_384
_KEPT = 4_096

# With all of a namespace together, or only those of a tenant or an entity.
_OF_A_NAMESPACE = re.compile(r"headgate:(?:\{([^}]+)\}:(?:.*#|records(?::|$))|([^{]+):\{.*#)")


class Keys:
    def __init__(self, together: Together, *, clustered: bool) -> None:
        self._together = together
        self._clustered = clustered
        # The key of the row of `namespace/entity#resource` (core.names.bucket_key).
        self.row: Callable[[str], str] = lru_cache(_KEPT)(self._row)

    def _row(self, bucket_key: str) -> str:
        namespace, _, rest = bucket_key.partition("/")
        if self._together == "namespace":
            return f"headgate:{{{namespace}}}:{rest}"
        tag, inside, after = rest.partition("#")
        if self._together == "tenant":
            tenant, colon, member = tag.partition(":")
            return f"headgate:{namespace}:{{{tenant}}}{colon}{member}#{after}"
        return f"headgate:{namespace}:{{{tag}}}{inside}{after}"

    def pattern(self, namespace: str, entity_id: str | None, resource: str | None) -> str:
        """The pattern for SCAN. No identifier has a character that is special in a pattern."""
        if entity_id is None and self._together == "tenant":
            return f"headgate:{namespace}:{{*}}*#{resource or '*'}"
        return self.row(f"{namespace}/{entity_id or '*'}#{resource or '*'}")

    def slots(self, row_key: str, limit_name: str) -> tuple[str, str]:
        """The holders of a limit beside its row, and their amounts."""
        holders = f"{row_key}#{limit_name}"
        return holders, f"{holders}#amounts"

    def queue(self, row_key: str, limit_name: str) -> str:
        return f"{row_key}#{limit_name}#waiting"

    def parse(self, namespace: str, row_key: str) -> tuple[str, str]:
        """Entity and resource of a row."""
        plain = row_key.replace("{", "").replace("}", "")
        entity_id, _, resource = plain.removeprefix(f"headgate:{namespace}:").partition("#")
        return entity_id, resource

    def records(self, namespace: str) -> tuple[str, str, str]:
        base = f"headgate:{{{namespace}}}:records"
        return base, f"{base}:keys", f"{base}:expiring"

    def birth(self, slot: int) -> str:
        return f"headgate:{{{tag_of_slot(slot)}}}:birth" if self._clustered else "headgate:birth"

    def slot(self, key: str) -> int:
        return slot_of(key) if self._clustered else 0


def namespace_of(key: str) -> str | None:
    """The namespace of a row, of a key beside it, or of records; None for another key, like that of the birth."""
    found = _OF_A_NAMESPACE.match(key)
    return found[1] or found[2] if found else None


def is_row(key: str) -> bool:
    return key.count("#") == 1


def slot_of(key: str) -> int:
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return crc_hqx(tag.encode(), 0) % SLOTS


@lru_cache(1)
def _tags() -> dict[int, str]:
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < SLOTS:
        tags.setdefault(slot_of(str(number)), str(number))
        number += 1
    return tags


def tag_of_slot(slot: int) -> str:
    """The smallest number whose slot it is."""
    return _tags()[slot]
