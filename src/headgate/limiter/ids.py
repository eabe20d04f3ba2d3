"""What an entity is called in the store: the id that the caller gave, or a hash that keeps it secret."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Protocol, cast

from ..core.errors import ValidationError
from ..core.names import StoredId, check_entity_id

MAX_KEY_BYTES = blake2b.MAX_KEY_SIZE


class ToStoredId(Protocol):
    """Check what a caller gave as an id, and turn it into what is stored. To be done once: a hash would be hashed."""

    def __call__(self, value: Any, what: str = "entity_id", /) -> StoredId: ...


def to_stored_id(hash_entity_ids: Any) -> ToStoredId:
    """What the setting means."""
    if hash_entity_ids is False:
        return cast(ToStoredId, check_entity_id)
    if hash_entity_ids is True:
        return _hasher(b"")
    if isinstance(hash_entity_ids, bytes) and 0 < len(hash_entity_ids) <= MAX_KEY_BYTES:
        return _hasher(hash_entity_ids)
    # The value is not shown: it may be a key.
    what = f"{len(hash_entity_ids)} bytes" if isinstance(hash_entity_ids, bytes) else type(hash_entity_ids).__name__
    raise ValidationError(
        f"hash_entity_ids must be True, False or a key of 1 to {MAX_KEY_BYTES} bytes, not {what}: "
        "secrets.token_bytes(32) makes a key, and a str is made one by .encode()"
    )


def _hasher(key: bytes) -> ToStoredId:
    def hashed(value: Any, what: str = "entity_id", /) -> StoredId:
        if not isinstance(value, str):
            raise ValidationError(f"{what} must be a string, not {type(value).__name__}")
        if not 0 < len(value) <= 256:
            raise ValidationError(f"{what} of {len(value)} characters is not allowed: 1 to 256 characters, of any kind")
        # A lone surrogate is a character too, and the error that it cannot be encoded would show the id.
        data = value.encode("utf-8", "surrogatepass")
        return StoredId(blake2b(data, digest_size=20, key=key).hexdigest())

    return hashed
