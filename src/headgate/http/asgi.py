"""ASGI middleware: any ASGI application behind rules. Websockets, lifespans and streams pass through untouched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from ..limiter import RateLimiter
from .answer import Refusal
from .book import RulesSpec
from .call import BadPath, Call
from .engine import AsyncGate, Engine, bad_path

Scope: TypeAlias = "MutableMapping[str, Any]"
Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
App: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"


class AsgiCall(Call):
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
            except NotImplementedError:  # what Starlette's own class does
                continue
            if found not in (None, ""):
                return str(found)
        return None


class RateLimitMiddleware:
    """`app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("all", limits="10/minute")])`.

    It takes what `Engine` takes. What was decided is in `scope["headgate"]`.
    """

    def __init__(self, app: App, limiter: RateLimiter, rules: RulesSpec, **settings: Any) -> None:
        self.app = app
        self.gate = AsyncGate(Engine(limiter, rules, **settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            verdict = await self.gate.check(AsgiCall(scope))
        except BadPath as error:
            verdict = bad_path(error)
        if isinstance(verdict, Refusal):
            await refuse(send, verdict)
            return
        scope["headgate"] = verdict.decision
        try:
            await self.app(scope, receive, adding(send, verdict.headers) if verdict.headers else send)
        finally:
            if verdict.leases:
                await self.gate.end(verdict.leases)


def adding(send: Send, headers: Sequence[tuple[str, str]]) -> Send:
    """`send`, and the headers are added to the answer."""
    raw = _raw(headers)

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *raw]}
        await send(message)

    return send_more


async def refuse(send: Send, refusal: Refusal) -> None:
    headers = _raw(refusal.headers)
    headers.append((b"content-length", str(len(refusal.body)).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body})


def _raw(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(_raw_name(name), value.encode("latin-1")) for name, value in headers]


@lru_cache(256)
def _raw_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
