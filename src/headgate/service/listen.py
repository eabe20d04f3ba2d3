"""Addresses to listen on."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple

from ..core.errors import HeadgateError, ValidationError

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

_OTHER_FILES = 200  # the store, the program, the log


class Address(NamedTuple):
    """An address like `127.0.0.1:8080` or `[::1]:8080`. Port 0 is any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str) -> Address:
        host, separator, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        plain = bare if bare != host or ":" not in host else ""  # an IPv6 address has to have brackets
        if not separator or not plain or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise ValidationError(f"{option} must be like 127.0.0.1:8080 or [::1]:8080, not {text!r}")
        return cls(plain, int(port))

    def at(self, port: int) -> Address:
        return Address(self.host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_loopback(self) -> bool:
        """Whether it cannot be reached from other machines."""
        return all(ip_address(found[4][0].partition("%")[0]).is_loopback for found in self._found())

    def bound(self, *, shared: bool = False) -> socket.socket:
        """A socket that will listen there. `shared`: other sockets of this user may, too."""
        family, kind, number, _, place = self._found()[0]
        listener = socket.socket(family, kind, number)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(place)
        except OSError as error:
            listener.close()
            raise HeadgateError(f"cannot listen on {self}: {error.strerror or error}") from None
        return listener

    def _found(self) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]]:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ValidationError(f"cannot listen on {self}: unknown host {self.host!r} ({error})") from None
        return found  # type: ignore[return-value]


def room_for(connections: int) -> int:
    """The number of connections that the limit on open files allows, for HTTP and as many for gRPC.

    A process without free files can neither accept connections nor reach the store.
    """
    if resource is None:
        return connections
    needed = 2 * connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, min(connections, (soft - _OTHER_FILES) // 2))
    return connections
