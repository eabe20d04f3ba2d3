"""What the buckets of descriptors are called: readable where what Envoy sends can be, hashed where not.

Two descriptors that differ where a rule says `*` never share a bucket, whatever bytes a client put into them.
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
    """`remote_address:10.0.0.1`, or `user:bob@@path:blake2b-...` where a value is odd, or its key is a secret one."""
    parts = [f"{_part(key.encode())}:{_part(value, secret=key in secret)}" for key, value in entries]
    whole = _BETWEEN.join(parts)
    return _short(whole) if parts else EVERYONE


def resource_of(domain: str, keys: Iterable[str]) -> str:
    """`edge/path/remote_address`, of descriptors that bring their own limit. No rule has a `/` in its id."""
    first, *others = (_part(name.encode()) for name in (domain, *keys))
    return f"{_short(first, _LONGEST // 2)}/{_short('/'.join(others), _LONGEST // 3)}"


def _part(value: bytes, *, secret: bool = False) -> str:
    return value.decode() if not secret and _READABLE.fullmatch(value) else _hash(value)


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else _hash(text.encode())


def _hash(value: bytes) -> str:
    return _HASHED + blake2b(value, digest_size=20).hexdigest()
