"""Where rows are: their keys, and the keys that others are between."""

from __future__ import annotations

from typing import TypeAlias

Place: TypeAlias = tuple[str, str]  # key, limit name

AFTER_ALL = chr(0x10FFFF)


def bounds_of(namespace: str, entity_id: str | None = None) -> tuple[str, str]:
    """All keys of a namespace, or all buckets of an entity, are between these."""
    prefix = f"{namespace}/" if entity_id is None else f"{namespace}/{entity_id}#"
    return prefix, prefix + AFTER_ALL
