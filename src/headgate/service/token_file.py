"""Tokens from a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from os import PathLike
from typing import Any

from ..core.errors import ValidationError
from ..core.names import check_entity_id, check_namespace
from ..files import Node, read_document
from .tokens import LEAST_CHARACTERS, Token, Tokens, hashed, read_scopes

_SHA256 = re.compile("[0-9a-f]{64}")
_FIELDS = ("name", "sha256", "token_env", "scopes", "namespace", "expires")


def load_tokens(path: str | PathLike[str], environment: Mapping[str, str] = os.environ) -> Tokens:
    """Read `tokens` of a `.yaml` or `.toml` file, or raise DocumentError with all that is wrong with it.

    Each has a `name`, `scopes`, a `namespace` if it is not "default", and `sha256`, the hash of the token, or
    `token_env`, the environment variable that has the token itself. From `expires` on, a date or a time, it is void.
    """
    root = read_document(path)
    fields = root.fields(["tokens"], ["tokens"])
    nodes = fields["tokens"].items() if "tokens" in fields else []
    if "tokens" in fields and fields["tokens"].value == []:
        fields["tokens"].wrong("there are no tokens, and nobody could do anything")
    read = [(node, token) for node in nodes if (token := _token(node, environment))]
    names: set[str] = set()
    digests: set[str] = set()
    for node, token in read:
        if token.name in names:
            node.wrong(f"there are two tokens with the name {token.name!r}")
        if token.sha256 in digests:
            node.wrong(f"token {token.name!r} is the same as one before it")
        names.add(token.name)
        digests.add(token.sha256)
    root.document.check()
    return Tokens(token for _, token in read)


def _token(node: Node, environment: Mapping[str, str]) -> Token | None:
    fields = node.fields(_FIELDS, ["name", "scopes"])
    if ("sha256" in fields) == ("token_env" in fields):
        node.wrong("a token needs either sha256, its hash, or token_env, the environment variable that has it")
    found: dict[str, Any] = {}
    for key, field in fields.items():
        if key == "token_env":
            found["sha256"] = field.read(lambda variable: _from_environment(variable, environment))
        else:
            found[key] = field.read(_READERS[key])
    if None in found.values() or not found.keys() >= {"name", "sha256", "scopes"}:
        return None
    return Token(**found)


def _from_environment(variable: Any, environment: Mapping[str, str]) -> str:
    token = environment.get(variable) if isinstance(variable, str) else None
    if token is None:
        raise ValidationError(f"token_env: there is no environment variable {variable!r}")
    if len(token) < LEAST_CHARACTERS:
        raise ValidationError(
            f"token_env: the token in {variable} has {len(token)} characters, and fewer than {LEAST_CHARACTERS} can "
            "be guessed: `headgate token NAME` makes a good one"
        )
    return hashed(token)


def _read_sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        # Not shown: somebody may have written the token itself.
        raise ValidationError("sha256 must be 64 hexadecimal digits in small letters, as `headgate token NAME` prints")
    return value


def _read_expires(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (AttributeError, ValueError):
        raise ValidationError(f"expires must be like '2030-01-31' or '2030-01-31T12:00:00Z', not {value!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


_READERS = {
    "name": lambda name: check_entity_id(name, "name"),
    "sha256": _read_sha256,
    "scopes": read_scopes,
    "namespace": check_namespace,
    "expires": _read_expires,
}
