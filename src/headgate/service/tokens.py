"""Who may do what: bearer tokens, of which only hashes are kept."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any, Literal, TypeAlias, get_args

from ..core.errors import ValidationError

Scope: TypeAlias = Literal["decide", "read", "admin", "namespaces"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
LEAST_CHARACTERS = 20

_PREFIX = "hg_"


@dataclass(frozen=True, slots=True)
class Token:
    """Whoever presents what hashes to `sha256` may do what `scopes` say, in one namespace. `admin` may do all there.

    From `expires` on it is nobody's.
    """

    name: str
    sha256: str
    scopes: frozenset[str]
    namespace: str = "default"
    expires: datetime | None = None

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and datetime.now(timezone.utc) >= self.expires

    def allows(self, scope: str) -> bool:
        # What is done to namespaces concerns others than those of this one, and has to be allowed by name.
        return scope in self.scopes or ("admin" in self.scopes and scope != "namespaces")


class Tokens:
    def __init__(self, tokens: Iterable[Token]) -> None:
        self.all = tuple(tokens)
        self._digests = [(bytes.fromhex(token.sha256), token) for token in self.all]

    def find(self, presented: str) -> Token | None:
        """Whose token it is, as long as it is one."""
        found = self.match(presented)
        return None if found is None or found.has_expired else found

    def match(self, presented: str) -> Token | None:
        """Whose it is or was. It takes the same time for all of them, and for those that are nobody's."""
        digest = sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, token in self._digests:
            if hmac.compare_digest(known, digest):
                found = token
        return found

    def known(self, sha256: str) -> Token | None:
        """The token with a hash, as long as it is one."""
        return next((token for token in self.all if token.sha256 == sha256 and not token.has_expired), None)

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
