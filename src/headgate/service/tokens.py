"""Bearer tokens: what each may do, reading them from a file, counting those refused. Only hashes are kept."""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from os import PathLike
from secrets import token_urlsafe
from typing import Any, Literal, TypeAlias, get_args

from ..core.errors import ValidationError
from ..core.names import check_entity_id, check_namespace
from ..files import Node, read_document

log = logging.getLogger("headgate")

Scope: TypeAlias = Literal["decide", "read", "admin", "namespaces"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
LEAST_CHARACTERS = 20

Door: TypeAlias = Literal["api", "login", "envoy"]
Reason: TypeAlias = Literal["missing", "unknown", "expired", "scope"]
DOORS: tuple[Door, ...] = get_args(Door)
REASONS: tuple[Reason, ...] = get_args(Reason)
LOG_EVERY_SECONDS = 10.0

_PREFIX = "hg_"
_SHA256 = re.compile("[0-9a-f]{64}")
_FIELDS = ("name", "sha256", "token_env", "scopes", "namespace", "expires")


@dataclass(frozen=True, slots=True)
class Token:
    """A token, known by its hash, with `scopes` in one namespace. The scope `admin` includes all others there.

    It is valid until `expires`.
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
        # Changes of namespaces concern other users of the store, so `admin` does not include them.
        return scope in self.scopes or ("admin" in self.scopes and scope != "namespaces")


class Tokens:
    def __init__(self, tokens: Iterable[Token]) -> None:
        self.all = tuple(tokens)
        self._digests = [(bytes.fromhex(token.sha256), token) for token in self.all]

    def find(self, presented: str) -> Token | None:
        """The token, if it is known and has not expired."""
        found = self.match(presented)
        return None if found is None or found.has_expired else found

    def match(self, presented: str) -> Token | None:
        """The token, expired or not. It takes the same time for every token, unknown ones included."""
        digest = sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, token in self._digests:
            if hmac.compare_digest(known, digest):
                found = token
        return found

    def known(self, sha256: str) -> Token | None:
        """The token with a hash, if it has not expired."""
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


# From a file


def load_tokens(path: str | PathLike[str], environment: Mapping[str, str] = os.environ) -> Tokens:
    """Read `tokens` of a `.yaml` or `.toml` file, or raise DocumentError with all mistakes in it.

    Each has a `name`, `scopes`, a `namespace` if it is not "default", and `sha256`, the hash of the token, or
    `token_env`, the environment variable with the token itself. It is valid until `expires`, a date or a time.
    """
    root = read_document(path)
    fields = root.fields(["tokens"], ["tokens"])
    nodes = fields["tokens"].items() if "tokens" in fields else []
    if "tokens" in fields and fields["tokens"].value == []:
        fields["tokens"].wrong("tokens is empty: no client could do anything")
    read = [(node, token) for node in nodes if (token := _token(node, environment))]
    names: set[str] = set()
    digests: set[str] = set()
    for node, token in read:
        if token.name in names:
            node.wrong(f"two tokens have the name {token.name!r}")
        if token.sha256 in digests:
            node.wrong(f"token {token.name!r} is the same as an earlier one")
        names.add(token.name)
        digests.add(token.sha256)
    root.document.check()
    return Tokens(token for _, token in read)


def _token(node: Node, environment: Mapping[str, str]) -> Token | None:
    fields = node.fields(_FIELDS, ["name", "scopes"])
    if ("sha256" in fields) == ("token_env" in fields):
        node.wrong("a token needs either sha256, its hash, or token_env, the environment variable that contains it")
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
        raise ValidationError(f"token_env: the environment variable {variable!r} is not set")
    if len(token) < LEAST_CHARACTERS:
        raise ValidationError(
            f"token_env: the token in {variable} has {len(token)} characters, and fewer than {LEAST_CHARACTERS} can "
            "be guessed: make one with `headgate token NAME`"
        )
    return hashed(token)


def _read_sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        # Not shown: it may be the token itself, by mistake.
        raise ValidationError("sha256 must be 64 hexadecimal digits in lower case, as `headgate token NAME` prints")
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


# Refused tokens


class AuthFailures:
    """Counts refused tokens, and logs at most one line in ten seconds, so that they cannot fill the log.

    The tokens themselves are never logged. A request without a token, as probes and browsers send, is only counted.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_line = float("-inf")
        self._untold = 0
        self.counts: dict[tuple[Door, Reason], int] = {(door, reason): 0 for door in DOORS for reason in REASONS}

    def count(self, door: Door, reason: Reason, who: str) -> None:
        """`who`: the address it came from, or the name of the token that lacks a scope."""
        self.counts[door, reason] += 1
        if reason == "missing":
            return
        now = self._now()
        if now < self._next_line:
            self._untold += 1
            return
        more = f"; {self._untold:,} more since the last line" if self._untold else ""
        log.warning("a token was refused (%s, %s) from %s%s", door, reason, who, more)
        self._next_line, self._untold = now + LOG_EVERY_SECONDS, 0
