"""Who is at the other end of a request, and whether it came by TLS, seen through the proxies that are trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ..http.addresses import Addresses

Scope: TypeAlias = "Mapping[str, Any]"

UNKNOWN = "unknown"
_FORWARDED_PROTO = re.compile(rb'(?:^|[;,])\s*proto\s*=\s*"?https\b', re.IGNORECASE)


class _Sender:
    """A scope, as `Addresses` sees a request."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def peer(self) -> str | None:
        client = self._scope.get("client")
        return client[0] if client else None

    def headers(self, name: str) -> list[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self._scope["headers"] if key == wanted]


class Clients:
    """`proxies`: addresses and networks whose `X-Forwarded-For` is believed; of nobody else it is."""

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._addresses = Addresses(proxies)

    def address(self, scope: Scope) -> str:
        return self._addresses.of(_Sender(scope)) or UNKNOWN


def is_secure(scope: Scope) -> bool:
    """Whether the browser speaks TLS, to us or to any proxy on the way.

    Each proxy may add what it knows, so that there are several values, and any may be the browser's. A cookie that is
    Secure by mistake is not sent, and a client that lies harms only itself; one that is not could be read on the way.
    """
    if scope.get("scheme") == "https":
        return True
    sent = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
    if any(one.strip().lower() == b"https" for value in sent for one in value.split(b",")):
        return True
    return any(_FORWARDED_PROTO.search(value) for name, value in scope["headers"] if name == b"forwarded")
