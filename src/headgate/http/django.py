"""Django: middleware that applies rules to all requests, and limits on single views.

Both take their settings from `HEADGATE` in the project's settings, and share one limiter. It is a `SyncRateLimiter`
under ASGI too, where Django runs blocking code in the thread of the request. So views may be of either kind, event
loops may come and go, and `request.user` may query the database.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from ..limiter import SyncRateLimiter
from .answer import HttpRefusal
from .call import BadPath, HttpCall
from .engine import Passed, RuleEngine, SyncGate, Verdict, bad_path
from .fields import REJECT, BadCostChoice, Cost, Per
from .rules import Match
from .views import ViewLimit, mark, matches, name_of, stacked

__all__ = ["DjangoCall", "RateLimitMiddleware", "limit"]

F = TypeVar("F", bound=Callable[..., Any])
Matches: TypeAlias = "Sequence[Match] | None"

_SETTING = "HEADGATE"
_OF_LIMITER = ("URL", "NAMESPACE", "LIMITER")
_OF_ENGINE = ("RULES", "PLANS", "IDENTITY", "EXEMPT_PATHS", "EXEMPT", "HEADERS", "ON_REFUSED", "ON_UNAVAILABLE")
_IMPORTED = ("LIMITER", "PLANS", "IDENTITY", "EXEMPT", "ON_REFUSED")  # if given as dotted paths


class DjangoCall(HttpCall):
    """`native` is the request."""

    __slots__ = ()

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request.method or "", request.path_info, request)

    def headers(self, name: str) -> list[str]:
        value = self.native.headers.get(name)
        return [] if value is None else value.split(",")  # repeated headers are joined by commas

    @property
    def peer(self) -> str | None:
        return self.native.META.get("REMOTE_ADDR") or None

    @property
    def user(self) -> str | None:
        user = getattr(self.native, "user", None)
        return str(user.pk) if user is not None and user.is_authenticated else None


class RateLimitMiddleware:
    """`"headgate.http.django.RateLimitMiddleware"` in `MIDDLEWARE`, after the authentication middleware.

    The decision is in `request.headgate`. A subclass can have its own settings: override `open_gate`.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.gate = self.open_gate()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def open_gate(self) -> SyncGate:
        """The gate of the project's settings."""
        return _current.gate()

    def __call__(self, request: HttpRequest) -> Any:
        limited = _limited_async if self._is_async else _limited
        return limited(self.gate, request, None, partial(self.get_response, request))


def limit(
    limits: Any = None,
    *,
    id: str | None = None,
    cost: Cost = 1,
    per: Per = "caller",
    shadow: bool = False,
    bad_cost: BadCostChoice = REJECT,
) -> Callable[[F], F]:
    """A limit on a view, `async` or not; on a class or one of its methods, `@method_decorator(limit("5/minute"))`."""
    added = ViewLimit(limits, id=id, cost=cost, per=per, shadow=shadow, bad_cost=bad_cost)

    def decorate(decorated: F) -> F:
        view, all_limits = stacked(decorated, added)

        @wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            match = request.resolver_match
            view_class = getattr(match.func, "view_class", None) if match else None
            found = matches(all_limits, name_of(inspect.unwrap(view), view_class), kwargs, request.__dict__)
            answer = partial(view, request, *args, **kwargs)
            # The `dispatch` of a class with coroutine methods is not a coroutine function.
            is_async = iscoroutinefunction(view) or getattr(view_class, "view_is_async", False)
            return (_limited_async if is_async else _limited)(_current.gate(), request, found, answer)

        if iscoroutinefunction(view):
            markcoroutinefunction(limited)
        marked: F = mark(limited, view, all_limits)
        return marked

    return decorate


def _limited(gate: SyncGate, request: HttpRequest, found: Matches, answer: Callable[[], Any]) -> Any:
    verdict = _check(gate, request, found)
    if isinstance(verdict, HttpRefusal):
        return _refused(verdict)
    try:
        return _passed(answer(), verdict)
    except BaseException:
        SyncGate.end(verdict.leases)
        raise


async def _limited_async(gate: SyncGate, request: HttpRequest, found: Matches, answer: Callable[[], Any]) -> Any:
    checking = asyncio.ensure_future(sync_to_async(_check)(gate, request, found))
    try:
        verdict = await asyncio.shield(checking)
    except asyncio.CancelledError:
        # The client has disconnected, but a thread still works for it.
        await sync_to_async(SyncGate.end)(_leases(await checking))
        raise
    if isinstance(verdict, HttpRefusal):
        return _refused(verdict)
    try:
        return _passed(await answer(), verdict)
    except BaseException:
        await sync_to_async(SyncGate.end)(verdict.leases)
        raise


def _check(gate: SyncGate, request: HttpRequest, found: Matches) -> Verdict:
    try:
        verdict = gate.check(DjangoCall(request), found)
    except BadPath as error:
        return bad_path(error)
    if isinstance(verdict, Passed):
        request.headgate = verdict.decision
        if verdict.leases:
            _end_with(request, verdict)
    return verdict


def _leases(verdict: Verdict) -> Sequence[Any]:
    return verdict.leases if isinstance(verdict, Passed) else ()


def _end_with(request: HttpRequest, passed: Passed) -> None:
    """Django closes a request when the response is sent or abandoned, whatever the response is."""
    close = request.close

    def close_and_end() -> None:
        try:
            close()
        finally:
            SyncGate.end(passed.leases)

    request.close = close_and_end


def _refused(refusal: HttpRefusal) -> HttpResponse:
    headers = {**dict(refusal.headers), "Content-Length": str(len(refusal.body))}
    return HttpResponse(refusal.body, status=refusal.status, headers=headers)


def _passed(response: Any, passed: Passed) -> Any:
    for name, value in passed.headers:
        before = response.headers.get(name)
        response.headers[name] = f"{before}, {value}" if before and name.startswith("RateLimit") else value
    if passed.leases and response.streaming and getattr(response, "file_to_stream", None) is None:
        # Under ASGI, Django does not close the request when a stream fails.
        until = _until_failed_async if response.is_async else _until_failed
        response.streaming_content = until(response.streaming_content, passed)
    return response


def _until_failed(content: Any, passed: Passed) -> Iterator[bytes]:
    try:
        yield from content
    except Exception:
        SyncGate.end(passed.leases)
        raise


async def _until_failed_async(content: Any, passed: Passed) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    except Exception:
        await sync_to_async(SyncGate.end)(passed.leases)
        raise


class _Current:
    """The gate for the current settings, made once, and again when a test changes them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._gate: SyncGate | None = None
        self._opened: SyncRateLimiter | None = None

    def gate(self) -> SyncGate:
        if self._gate is None:
            with self._lock:
                self._gate = self._gate or self._make()
        return self._gate

    def forget(self, *, setting: str, **_: Any) -> None:
        if setting == _SETTING:
            with self._lock:
                opened, self._gate, self._opened = self._opened, None, None
            if opened is not None:
                opened.close()

    def _make(self) -> SyncGate:
        given = _read_settings(getattr(settings, _SETTING, None))
        limiter = given.pop("limiter", None)
        namespace = given.pop("namespace", "default")
        url = given.pop("url", None)
        if (limiter is None) == (url is None):
            raise ImproperlyConfigured(f"{_SETTING} needs either URL, of a store, or LIMITER, a SyncRateLimiter")
        if limiter is None:
            limiter = self._opened = SyncRateLimiter(url, namespace=namespace)
        # Plans are looked up in the request's thread, so that the ORM uses its usual connection.
        return SyncGate(RuleEngine(limiter, given.pop("rules", ()), **given), apart=False)


def _read_settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{_SETTING} must be set, like {{'URL': 'redis://...', 'RULES': 'rules.yaml'}}")
    known = (*_OF_LIMITER, *_OF_ENGINE)
    for name in given:
        if name not in known:
            raise ImproperlyConfigured(f"{_SETTING} has {name!r}; it may have {', '.join(known)}")
    return {
        name.lower(): import_string(value) if name in _IMPORTED and isinstance(value, str) and "." in value else value
        for name, value in given.items()
    }


_current = _Current()
setting_changed.connect(_current.forget)
