"""Identifiers and the keys made of them. `#` separates, so it is in no identifier."""

from __future__ import annotations

import re
from typing import Any, NewType

from .errors import ValidationError

REGISTRY = "_"  # the namespace of the namespaces: no other starts so
StoredId = NewType("StoredId", str)  # an entity's id as it is in the store, where it may be a hash

# What e-mail addresses and percent-encoded URLs are made of, without the characters that mean something in a key
# (`#`, `/`, braces), in a Redis pattern (`*`, `?`, `[`) or in the path of a URL.
ID_CHARACTERS = "A-Za-z0-9_.:@!$%&'+,=~-"
_ENTITY_ID = re.compile(rf"[A-Za-z0-9][{ID_CHARACTERS}]{{0,255}}")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,255}")
_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,255}")
_CREDENTIALS = re.compile(r"(?<=://).*(?=@)|(?<=password=)[^&]*")
_LIMIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def _checked(pattern: re.Pattern[str], value: Any, what: str, rule: str) -> str:
    if not isinstance(value, str):
        raise ValidationError(f"{what} must be a string, not {value!r}")
    if not pattern.fullmatch(value):
        shown = repr(value if len(value) <= 80 else value[:77] + "...")
        length = f" ({len(value)} characters)" if len(value) > 80 else ""
        raise ValidationError(f"{what} {shown}{length} is not allowed: {rule}")
    return value


def check_entity_id(value: Any, what: str = "entity_id") -> str:
    if isinstance(value, str) and _ENTITY_ID.fullmatch(value):
        return value
    rule = (
        "1 to 256 of A-Z a-z 0-9 _ . : @ ! $ % & ' + , = ~ - and the first a letter or digit; for any other string use "
        "hash_entity_ids=True, or encode it: urllib.parse.quote(value, safe='')"
    )
    return _checked(_ENTITY_ID, value, what, rule)


def check_namespace(value: Any) -> str:
    return _checked(_NAMESPACE, value, "namespace", "1 to 256 of A-Z a-z 0-9 _ . : @ - and the first a letter or digit")


def check_resource(value: Any) -> str:
    rule = "1 to 256 of A-Z a-z 0-9 _ . : @ / - and the first a letter or digit"
    return _checked(_RESOURCE, value, "resource", rule)


def check_limit_name(value: Any) -> str:
    rule = "1 to 64 of A-Z a-z 0-9 _ . - and the first a letter"
    return _checked(_LIMIT_NAME, value, "limit name", rule)


def shown_url(url: str) -> str:
    """A store URL for messages and logs, where no password belongs."""
    return _CREDENTIALS.sub("***", url) if isinstance(url, str) else url


def bucket_key(namespace: str, entity_id: StoredId, resource: str) -> str:
    """Where all buckets of an entity on a resource are kept together."""
    return f"{namespace}/{entity_id}#{resource}"


def parse_bucket_key(key: str) -> tuple[str, str, str]:
    """Namespace, entity id and resource of a bucket key."""
    namespace, _, rest = key.partition("/")
    entity_id, _, resource = rest.partition("#")
    return namespace, entity_id, resource
