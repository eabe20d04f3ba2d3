"""Reading a request: headers, body, query, parts of the path, cursors, and the address of the client."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from ..core.errors import ValidationError
from ..core.records import Page
from ..http.addresses import Addresses
from .problems import ProblemError

T = TypeVar("T")
Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
Headers: TypeAlias = "Mapping[bytes, bytes]"
Scope: TypeAlias = "Mapping[str, Any]"

_JSON = b"application/json"
_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]")
_HIDDEN = "api_key"
_SHOWN = 80
_FORWARDED_PROTO = re.compile(rb'(?:^|[;,])\s*proto\s*=\s*"?https\b', re.IGNORECASE)
UNKNOWN = "unknown"
_NONE: Mapping[str, Any] = {}
AT_ONCE = "headgate.at_once"


class AtOnce(NamedTuple):
    """An extension of ASGI, which spares messages: the body of the request, if it is all there; and a function that
    sends the response, and returns whether it did."""

    body: Callable[[], bytes | None]
    answer: Callable[[bytes, bytes], bool]


class Gone(Exception):
    """The client has disconnected."""


def read_headers(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Headers by name. A repeated header is left out, since it is ambiguous."""
    found = dict(headers)
    if len(found) < len(headers):
        for name in _repeated(name for name, _ in headers):
            found.pop(name, None)
    return found


def _repeated(names: Iterable[T]) -> Iterator[T]:
    """The repeated names, in one pass."""
    seen: set[T] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def check_json(headers: Headers) -> None:
    """A browser does not send this content type for a page of another site."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != _JSON:
        raise ProblemError(415, "the body must be sent with the header Content-Type: application/json")


def body_at_once(scope: Scope, most: int) -> bytes | None:
    """The body, if the server has all of it. Otherwise it has to be read."""
    at_once: AtOnce | None = scope.get("extensions", _NONE).get(AT_ONCE)
    body = None if at_once is None else at_once.body()
    return None if body is None or len(body) > most else body


def answer_at_once(scope: Scope, head: bytes, body: bytes) -> bool:
    """Whether the server has sent the response. Otherwise it has to be sent as messages."""
    at_once: AtOnce | None = scope.get("extensions", _NONE).get(AT_ONCE)
    return at_once is not None and at_once.answer(head, body)


async def read_body(receive: Receive, headers: Headers, most: int) -> bytes:
    length = headers.get(b"content-length", b"")[:19]
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(most: int) -> ProblemError:
    # The connection stays open, so that a client that is still sending can read the response. The rest is dropped.
    return ProblemError(413, f"the body is larger than {most:,} bytes, which is the maximum here")


def read_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        found = decoder.decode(body)
        # A text that is the same after re-encoding has no repeated key. Other spellings are checked in full.
        again = msgspec.json.encode(msgspec.json.decode(body))
        if again != body and again != msgspec.json.format(body, indent=-1):
            json.loads(body, object_pairs_hook=_unique)
    except msgspec.ValidationError as error:
        raise ProblemError(400, _said(str(error), body)) from None
    except UnicodeDecodeError as error:
        raise ProblemError(400, f"the body is not UTF-8: {error.reason}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ProblemError(400, f"the body is not JSON: {error}") from None
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(_repeated(name for name, _ in pairs))
        raise ProblemError(400, f"the key {twice[:_SHOWN]!r} is repeated")
    return found


def _said(message: str, body: bytes) -> str:
    """The message with the wrong value, if it is a single value and not a secret."""
    match = _PLACE.search(message)
    if match is None:
        return message
    path = match["path"].removeprefix(".")
    message = f"{path}: {message[: match.start()]}"
    if _HIDDEN in path:
        return message
    try:
        value = _at(match["path"], msgspec.json.decode(body))
    except (msgspec.DecodeError, LookupError):
        return message
    if isinstance(value, (list, dict)):
        return message
    shown = repr(value) if isinstance(value, str) else json.dumps(value)
    return f"{message} ({shown[:_SHOWN]})"


def _at(path: str, value: Any) -> Any:
    while path:
        step = _STEP.match(path)
        if step is None:
            raise LookupError(path)
        value = value[step["field"] or int(step["index"])]
        path = path[step.end() :]
    return value


def read_query(query: bytes, kind: type[T] | None) -> T | None:
    """The query as the given type. None if the operation has no query, and none was sent."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except (ValueError, UnicodeDecodeError):
        raise ProblemError(400, "the query cannot be read") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ProblemError(400, "the query repeats a name")
    if kind is None:
        if found:
            raise ProblemError(400, f"unknown query parameter {next(iter(found))[:_SHOWN]!r}: there are none here")
        return None
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        message = str(error)
        match = _PLACE.search(message)
        what = f"{match['path'].removeprefix('.')}: {message[: match.start()]}" if match else message
        raise ProblemError(400, f"the query is wrong: {what}") from None


def read_parameter(raw: str) -> str:
    """A part of the path. 404 if a proxy might take it for another path."""
    try:
        value = unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise not_found() from None
    if {"", ".", ".."}.intersection(value.split("/")) or ";" in value:
        raise not_found()
    return value


def not_found() -> ProblemError:
    return ProblemError(404, "nothing is at this path: /openapi.json lists all paths")


# Pages of lists


class Paged(Protocol):
    cursor: str


def read_cursor(query: Paged) -> str | None:
    try:
        return base64.b64decode(query.cursor, b"-_", validate=True).decode() or None
    except (binascii.Error, ValueError):
        raise ValidationError("unknown cursor: send the cursor of a page unchanged") from None


def cursor_of(page: Page[Any]) -> str | None:
    return None if page.cursor is None else base64.urlsafe_b64encode(page.cursor.encode()).decode()


# The client


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
    """`proxies`: addresses and networks whose `X-Forwarded-For` is trusted."""

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._addresses = Addresses(proxies)

    def address(self, scope: Scope) -> str:
        return self._addresses.of(_Sender(scope)) or UNKNOWN


def is_secure(scope: Scope) -> bool:
    """Whether the browser uses TLS, to us or to any proxy on the way.

    Each proxy may add a value, and any of them may be about the browser. If in doubt, the answer is yes: a cookie that
    is Secure by mistake is only not sent, while one that is not could be read on the way.
    """
    if scope.get("scheme") == "https":
        return True
    sent = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
    if any(one.strip().lower() == b"https" for value in sent for one in value.split(b",")):
        return True
    return any(_FORWARDED_PROTO.search(value) for name, value in scope["headers"] if name == b"forwarded")
