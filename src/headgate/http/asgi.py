"""ASGI middleware: rules for any ASGI application. WebSockets and lifespan events pass through untouched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, overload

from ..limiter import RateLimiter
from .answer import HttpRefusal
from .call import BadPath, HttpCall
from .engine import AsyncGate, RuleEngine, bad_path
from .rule_set import RulesSpec

Scope: TypeAlias = "MutableMapping[str, Any]"
Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
AsgiApp: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"

_BODIES = ("http.response.body", "http.response.pathsend", "http.response.zerocopysend")


class AsgiCall(HttpCall):
    """`native` is the scope."""

    __slots__ = ()

    def __init__(self, scope: Scope) -> None:
        path, root = scope["path"], scope.get("root_path", "")
        if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
            path = path[len(root) :] or "/"
        super().__init__(scope["method"], path, scope)

    def headers(self, name: str) -> list[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self.native["headers"] if key.lower() == wanted]

    @property
    def peer(self) -> str | None:
        client = self.native.get("client")
        return client[0] if client else None

    @property
    def user(self) -> str | None:
        user = self.native.get("user")
        if user is None or not getattr(user, "is_authenticated", False):
            return None
        for name in ("identity", "pk", "username", "display_name"):
            try:
                found = getattr(user, name, None)
            except NotImplementedError:  # raised by Starlette's base class
                continue
            if found not in (None, ""):
                return str(found)
        return None


class RateLimitMiddleware:
    """`app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("all", limits="10/minute")])`.

    It takes the settings of `RuleEngine`. The decision is in `scope["headgate"]`.
    """

    # The type of Starlette's add_middleware() wants `app` by position only; Starlette before 0.41.3 passes it by name.
    @overload
    def __init__(self, app: AsgiApp, /, limiter: RateLimiter, rules: RulesSpec, **settings: Any) -> None: ...
    @overload
    def __init__(self, app: AsgiApp, limiter: RateLimiter, rules: RulesSpec, **settings: Any) -> None: ...
    def __init__(  # type: ignore[misc]  # no setting is called `app`
        self, app: AsgiApp, limiter: RateLimiter, rules: RulesSpec, **settings: Any
    ) -> None:
        self.app = app
        self.gate = AsyncGate(RuleEngine(limiter, rules, **settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            verdict = await self.gate.check(AsgiCall(scope))
        except BadPath as error:
            verdict = bad_path(error)
        if isinstance(verdict, HttpRefusal):
            await refuse(send, verdict)
            return
        scope["headgate"] = verdict.decision
        send = adding(send, verdict.headers) if verdict.headers else send
        if not verdict.leases:
            await self.app(scope, receive, send)
            return
        ending = Ending(self.gate.end, verdict.leases)
        try:
            await self.app(scope, receive, ending.after_the_last(send))
        finally:
            await ending()


class Ending:
    """Ends leases, once. Work that an application does after its response holds no slots."""

    def __init__(self, end: Callable[[Iterable[Any]], Awaitable[None]], leases: Iterable[Any]) -> None:
        self._end = end
        self._leases = leases

    async def __call__(self) -> None:
        leases, self._leases = self._leases, ()
        await self._end(leases)

    def after_the_last(self, send: Send) -> Send:
        """`send`, which ends the leases after the last part of the response."""
        trailers = False

        async def send_and_end(message: Message) -> None:
            nonlocal trailers
            await send(message)
            kind = message["type"]
            if kind == "http.response.start":
                trailers = message.get("trailers", False)
            elif kind == "http.response.trailers":
                if not message.get("more_trailers", False):
                    await self()
            elif not trailers and not message.get("more_body", False) and kind in _BODIES:
                await self()

        return send_and_end


def adding(send: Send, headers: Sequence[tuple[str, str]]) -> Send:
    """`send`, with these headers added to the response."""
    raw = _raw(headers)

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *raw]}
        await send(message)

    return send_more


async def refuse(send: Send, refusal: HttpRefusal) -> None:
    headers = _raw(refusal.headers)
    headers.append((b"content-length", str(len(refusal.body)).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body})


def _raw(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(_raw_name(name), value.encode("latin-1")) for name, value in headers]


@lru_cache(256)
def _raw_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
