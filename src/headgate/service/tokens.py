"""Who may do what: bearer tokens, of which only hashes are kept."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any, Literal, TypeAlias, get_args

from ..core.errors import ValidationError

Scope: TypeAlias = Literal["decide", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
LEAST_CHARACTERS = 20

_PREFIX = "hg_"


@dataclass(frozen=True, slots=True)
class Token:
    """Whoever presents what hashes to `sha256` may do what `scopes` say, in one namespace. `admin` may do all."""

    name: str
    sha256: str
    scopes: frozenset[str]
    namespace: str = "default"

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class Tokens:
    def __init__(self, tokens: Iterable[Token]) -> None:
        self.all = tuple(tokens)
        self._digests = [(bytes.fromhex(token.sha256), token) for token in self.all]

    def find(self, presented: str) -> Token | None:
        """Whose token it is. It takes the same time for all of them, and for those that are nobody's."""
        digest = sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, token in self._digests:
            if hmac.compare_digest(known, digest):
                found = token
        return found

    def __len__(self) -> int:
        return len(self.all)


def new_token() -> str:
    return _PREFIX + token_urlsafe(32)


def hashed(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def read_scopes(value: Any) -> frozenset[str]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValidationError(f"scopes must be a list of some of {', '.join(SCOPES)}, not {value!r}")
    for scope in value:
        if scope not in SCOPES:
            raise ValidationError(f"scopes has {scope!r}; it may have {', '.join(SCOPES)}")
    return frozenset(value)
