"""The address of a client, seen through trusted proxies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Protocol

from ..core.errors import ValidationError

UNIX = "unix"  # a peer without a network address: a proxy on the same machine
_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]*)\](?::\d+)?|(?P<v4>[^:]*)(?::\d+)?")
_FORWARDED_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<plain>[^;\s]*))', re.IGNORECASE)

Address = IPv4Address | IPv6Address


class Sender(Protocol):
    """The part of a request that tells its sender. Every `HttpCall` has it."""

    @property
    def peer(self) -> str | None: ...

    def headers(self, name: str) -> list[str]: ...


class Addresses:
    """`proxies`: addresses and networks that are trusted to name the client; `"unix"`: a proxy on a Unix socket.

    `forwarded`: the header in which they name it. `ipv6_prefix`: IPv6 addresses with the same leading bits are one
    client, since a provider assigns whole prefixes.
    """

    def __init__(
        self, proxies: Iterable[str] = (), *, forwarded: str = "x-forwarded-for", ipv6_prefix: int = 64
    ) -> None:
        if isinstance(proxies, str):
            raise ValidationError(f"proxies must be a list of addresses and networks, not {proxies!r}")
        if type(ipv6_prefix) is not int or not 0 < ipv6_prefix <= 128:
            raise ValidationError(f"ipv6_prefix must be from 1 to 128 bits, not {ipv6_prefix!r}")
        names = set(proxies)
        self._believes_unix = UNIX in names
        self._networks = [_network(name) for name in names - {UNIX}]
        self._header = forwarded.lower()
        self._ipv6_prefix = ipv6_prefix
        self.shown = lru_cache(4096)(self._shown)

    def of(self, call: Sender) -> str | None:
        """The address of the client, or None."""
        peer = call.peer
        if not self._networks and not self._believes_unix:
            return self.shown(peer) if peer else None
        address = parse(peer) if peer else None
        if address is None:
            if peer or not self._believes_unix:
                return self.shown(peer) if peer else None
        elif not self._is_proxy(address):
            return self.shown(str(address))
        return self._seen_by_proxies(call, address)

    def _seen_by_proxies(self, call: Sender, nearest: Address | None) -> str | None:
        """From the nearest hop outwards. A hop that is no trusted proxy is the client: what it forwards is ignored."""
        for hop in reversed(self._hops(call)):
            address = parse(hop)
            if address is None:
                break
            nearest = address
            if not self._is_proxy(address):
                break
        return None if nearest is None else self.shown(str(nearest))

    def _hops(self, call: Sender) -> list[str]:
        hops = ",".join(call.headers(self._header)).split(",")
        if self._header != "forwarded":
            return hops
        found = [_FORWARDED_FOR.search(hop) for hop in hops]
        return [(match["quoted"] or match["plain"] or "") if match else "" for match in found]

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _shown(self, text: str) -> str | None:
        address = parse(text)
        if isinstance(address, IPv6Address):
            return str(IPv6Network((address, self._ipv6_prefix), strict=False).network_address)
        return None if address is None else str(address)


def parse(text: str) -> Address | None:
    """An address as servers and proxies write it, with a port or without."""
    text = text.strip()
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        match = _WITH_PORT.fullmatch(text)
        try:
            address = ip_address((match["v6"] or match["v4"] or "").partition("%")[0] if match else "")
        except ValueError:
            return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _network(name: Any) -> Any:
    try:
        return ip_network(name, strict=False)
    except ValueError:
        raise ValidationError(
            f"proxies has {name!r}, which is not an address or a network: write '10.0.0.0/8', '127.0.0.1' or 'unix'"
        ) from None
