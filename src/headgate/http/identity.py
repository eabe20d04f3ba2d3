"""The caller of a request: the first known of user, organisation, API key and address, or `anonymous`."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

from ..core.errors import ValidationError
from ..core.names import ID_CHARACTERS
from ..plan import Plan
from .addresses import Addresses
from .call import HttpCall
from .fields import Per
from .steps import Await

Resolver: TypeAlias = "Callable[[HttpCall], Any]"

ANONYMOUS = "anonymous"
EVERYONE = "everyone"
_PLAIN = re.compile(f"[{ID_CHARACTERS}]{{1,200}}")
_HASHED = "hash:"


def header(name: str) -> Resolver:
    """The value of a header, as `api_key=header("x-api-key")`.

    A client can send any value: use it where a proxy or a middleware in front has checked it.
    """
    wanted = name.lower()
    return lambda call: call.header(wanted)


def bearer(call: HttpCall) -> str | None:
    """The token of `Authorization: Bearer ...`. As with `header`, it must have been checked before."""
    scheme, _, token = (call.header("authorization") or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class Identity:
    """Each of `user`, `organisation`, `api_key` and `address` is a function of the call; None from it means unknown.

    Defaults: the framework's user, no organisation, no API key, and the client's address as `addresses` finds it. There
    is no default for `api_key`, because an unchecked key is not an identity: a client that sends a new one with each
    request would never be limited. Return a key only after it was checked.

    API keys are hashed, with `secret` if it is given, before they are used.
    """

    def __init__(
        self,
        *,
        user: Resolver | None = None,
        organisation: Resolver | None = None,
        api_key: Resolver | None = None,
        address: Resolver | None = None,
        addresses: Addresses | None = None,
        secret: bytes = b"",
    ) -> None:
        self._secret = _check_secret(secret)
        given = {"user": user, "organisation": organisation, "api_key": api_key, "address": address}
        own = {kind: _check_resolver(kind, resolver) for kind, resolver in given.items() if resolver is not None}
        defaults: dict[str, Resolver] = {"user": lambda call: call.user, "address": (addresses or Addresses()).of}
        self._resolvers = {kind: resolver for kind in given if (resolver := own.get(kind) or defaults.get(kind))}
        self._waits = [kind for kind, resolver in self._resolvers.items() if inspect.iscoroutinefunction(resolver)]
        self._named = lru_cache(4096)(self._name)

    def know_plan(self, call: HttpCall) -> Plan[None]:
        """Await the coroutine functions; `of` calls the others."""
        known = {}
        for kind in self._waits:
            known[kind] = yield from Await(self._resolvers[kind](call))
        call.known = known

    @property
    def waits(self) -> bool:
        """Whether any of the functions must be awaited."""
        return bool(self._waits)

    def caller(self, call: HttpCall) -> str:
        """The entity id of the caller."""
        if call.caller is None:
            for kind in self._resolvers:
                found = self._resolve(kind, call)
                if found is not None:
                    call.caller = found
                    return found
            call.caller = ANONYMOUS
        return call.caller

    def of(self, per: Per, call: HttpCall) -> str:
        """The entity whose bucket is used. If its kind is unknown for this call, the caller."""
        if per == "caller":
            return self.caller(call)
        return EVERYONE if per == "everyone" else self._resolve(per, call) or self.caller(call)

    def _resolve(self, kind: str, call: HttpCall) -> str | None:
        resolver = self._resolvers.get(kind)
        if resolver is None:
            return None
        value = call.known[kind] if kind in call.known else resolver(call)
        if value is None or value == "":
            return None
        if type(value) is not str and asyncio.iscoroutine(value):
            value.close()
            raise ValidationError(f"{kind} returned a coroutine: pass a coroutine function, or an ordinary one")
        return self._name(kind, value) if kind == "api_key" else self._named(kind, str(value))

    def _name(self, kind: str, value: Any) -> str:
        """A valid entity id: the value itself, or its hash if it is a secret or has other characters."""
        value = str(value)
        if kind == "api_key" or not _PLAIN.fullmatch(value) or value.startswith(_HASHED):
            data = value.encode("utf-8", "surrogatepass")
            value = _HASHED + blake2b(data, digest_size=16, key=self._secret).hexdigest()
        return f"{kind}:{value}"


def _check_secret(secret: Any) -> bytes:
    if not isinstance(secret, bytes) or len(secret) > blake2b.MAX_KEY_SIZE:
        raise ValidationError(f"secret must be at most {blake2b.MAX_KEY_SIZE} bytes")  # and is not shown
    return secret


def _check_resolver(kind: str, resolver: Any) -> Resolver:
    if not callable(resolver):
        raise ValidationError(f"{kind} must be a function of the call, not {resolver!r}")
    return resolver  # type: ignore[no-any-return]
