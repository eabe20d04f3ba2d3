"""The operations of the service as a table: routes, scopes, and types of requests and responses come from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_type_hints

import msgspec

from ..http.engine import AsyncGate
from ..limiter import RateLimiter
from .bounds import MAX_BODY_BYTES
from .reading import Receive
from .tokens import Scope, Token

if TYPE_CHECKING:
    from .state import Service

Handler: TypeAlias = "Callable[..., Awaitable[Any]]"

JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


class Asked(NamedTuple):
    """The context of a request: the limiter and the rules of its namespace. `token`: the one it was sent with."""

    service: Service
    limiter: RateLimiter
    gate: AsyncGate | None
    receive: Receive
    token: Token

    @property
    def actor(self) -> str:
        return self.token.name


@dataclass(frozen=True)
class Operation:
    """`scope`: the scope that a token needs; None: no token is needed. `body`, `query` and `answer` are types, or None.

    A response of another media type than JSON is `bytes`.
    """

    method: str
    path: str
    scope: Scope | None
    handler: Handler
    body: type[msgspec.Struct] | None
    query: type[msgspec.Struct] | None
    answer: type[msgspec.Struct] | type[bytes] | None
    status: int
    max_bytes: int
    problems: tuple[int, ...]
    media: str
    tag: str

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def changes(self) -> bool:
        """Whether it changes what processes keep in memory."""
        return self.scope in ("admin", "namespaces")

    @property
    def words(self) -> str:
        return cleandoc(self.handler.__doc__ or "")

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return _PARAMETER.sub(r"{\1}", self.path)


def operation(
    method: str,
    path: str,
    scope: Scope | None,
    *,
    status: int = 200,
    max_bytes: int = MAX_BODY_BYTES,
    problems: tuple[int, ...] = (),
    media: str = JSON,
    tag: str | None = None,
) -> Callable[[Handler], Operation]:
    """Make an operation of a handler. Its parameters are named after what they receive: `body`, `query`, path parts."""

    def made(handler: Handler) -> Operation:
        kinds = get_type_hints(handler)
        answer = None if kinds["return"] is type(None) else kinds["return"]
        body, query = kinds.get("body"), kinds.get("query")
        code = status if answer else 204
        group = tag or handler.__module__.rpartition(".")[2]
        return Operation(method, path, scope, handler, body, query, answer, code, max_bytes, problems, media, group)

    return made
