"""The names of the buckets of descriptors: readable where the values allow it, hashed otherwise.

Two descriptors that differ where a rule has `*` never share a bucket, whatever bytes a client sends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from hashlib import blake2b

EVERYONE = "everyone"
_LONGEST = 256
_BETWEEN = "@@"
_HASHED = "blake2b-"
_READABLE = re.compile(rb"(?!blake2b-)[A-Za-z0-9](?:@?[A-Za-z0-9_.:-]){0,255}")  # no `@@` in it, and no `@` at its end


def entity_of(entries: Iterable[tuple[str, bytes]], secret: Collection[str] = ()) -> str:
    """`remote_address:10.0.0.1`, or `user:bob@@path:blake2b-...` if a value has other characters or is secret."""
    parts = [f"{_part(key.encode())}:{_part(value, secret=key in secret)}" for key, value in entries]
    whole = _BETWEEN.join(parts)
    return _short(whole) if parts else EVERYONE


def resource_of(domain: str, keys: Iterable[str]) -> str:
    """`edge/path/remote_address`, for descriptors with their own limit. The id of a rule never contains `/`."""
    first, *others = (_part(name.encode()) for name in (domain, *keys))
    return f"{_short(first, _LONGEST // 2)}/{_short('/'.join(others), _LONGEST // 3)}"


def _part(value: bytes, *, secret: bool = False) -> str:
    return value.decode() if not secret and _READABLE.fullmatch(value) else _hash(value)


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else _hash(text.encode())


def _hash(value: bytes) -> str:
    return _HASHED + blake2b(value, digest_size=20).hexdigest()
