"""redis-py for both transports: how to connect, and what its exceptions mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.errors import ValidationError
from .exchange import Arguments, ReplyError
from .url import Address, RedisSettings

try:
    import hiredis
    from redis import exceptions
except ImportError as error:
    raise ValidationError("a Redis store needs redis-py and hiredis: pip install 'headgate[redis]'") from error

pack_command: Callable[[Arguments], bytes] = hiredis.pack_command  # type: ignore[assignment]  # declared for one word

# A connection that was idle for less may be used without checking whether the server has closed it, for a command that
# may be repeated.
RESTED_SECONDS = 1.0

_CODES: dict[type[Exception], str] = {
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.MasterDownError: "MASTERDOWN",  # before its base class
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.NoPermissionError: "NOPERM",
}


def connection(module: Any, settings: RedisSettings, address: Address, *, to_sentinel: bool, **timeouts: Any) -> Any:
    """A connection of redis-py, not connected yet. `module` is redis.connection or redis.asyncio.connection."""
    options: dict[str, Any] = {"protocol": 2, **timeouts}
    if to_sentinel:
        options |= {"username": settings.sentinel_username, "password": settings.sentinel_password}
    else:
        options |= {"username": settings.username, "password": settings.password, "db": settings.db}
    host, port = address
    if not port:
        return module.UnixDomainSocketConnection(path=host, **options)
    options |= {"host": host, "port": port, "socket_keepalive": True}
    if settings.tls is None:
        return module.Connection(**options)
    return module.SSLConnection(**options, **settings.tls)


# Error replies after which redis-py closes the connection.
REFUSALS = (exceptions.BusyLoadingError, exceptions.AuthenticationError)
# The same while connecting, and a wrong number of the database.
NOT_LET_IN = (*REFUSALS, exceptions.ResponseError)


def packed(commands: Sequence[Arguments]) -> list[bytes]:
    """As they are sent. The connections of redis-py could do it too, but those for coroutines in slow Python."""
    return [pack_command(command) for command in commands]


def reply_error(error: Exception) -> ReplyError:
    """From redis-py's exception for an error reply. The code is its class, or the first word of its text."""
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError):
        return ReplyError("NOAUTH" if "required" in text else "WRONGPASS", text)
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return ReplyError(code, text.removeprefix(f"{code} "))
    if any(f" -{code} " in text for code in ("READONLY", "OOM", "NOREPLICAS")):
        text = text[text.rindex(" -") + 2 :]  # Redis 6 puts the error of a script in the middle of the text
    code, _, rest = text.partition(" ")
    return ReplyError(code, rest) if code.isupper() and code.isalpha() else ReplyError("ERR", text)
