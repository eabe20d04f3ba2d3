"""Django, to be served by WSGI or by ASGI: some limits are rules, some are on views of several kinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import django
import site_parts as parts
from django.conf import settings
from django.core.signals import request_finished
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.decorators import method_decorator, sync_and_async_middleware
from django.utils.functional import SimpleLazyObject
from django.views import View

from headgate import SyncRateLimiter
from headgate.http.addresses import Addresses
from headgate.http.identity import Identity

ON_VIEWS = ("both", "both-more", "slow", "stream", "boom", "batch", "unset")

PLAIN = ("hello", "limited", "exempt", "users/<str:id>", "away", "away-open", "aside")

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="of a test",
    LOGGING_CONFIG=None,
    MIDDLEWARE=[
        "django_site.login",
        "headgate.http.django.RateLimitMiddleware",
        "django_site.Away",
        "django_site.AwayOpen",
    ],
    HEADGATE={
        "URL": "memory://",
        "RULES": [rule for rule in parts.RULES if rule.id not in ON_VIEWS],
        "IDENTITY": Identity(addresses=Addresses([parts.PROXY])),
        "EXEMPT_PATHS": parts.SETTINGS["exempt_paths"],
        "EXEMPT": "site_parts.is_vip",
    },
)
django.setup()

# They want the settings to be there.
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.urls import path  # noqa: E402

from headgate.http.django import DjangoCall, RateLimitMiddleware, limit  # noqa: E402
from headgate.http.engine import RuleEngine, SyncGate  # noqa: E402

away = SyncRateLimiter(parts.AWAY_URL)


@sync_and_async_middleware
def login(get_response: Any) -> Any:
    """As the middleware of django.contrib.auth does: nobody is asked for before somebody wants to know."""

    def user_of(request: HttpRequest) -> SimpleNamespace:
        name = unquote(DjangoCall(request).header("x-user") or "")
        return SimpleNamespace(pk=name, is_authenticated=bool(name))

    def middleware(request: HttpRequest) -> Any:
        request.user = SimpleLazyObject(lambda: user_of(request))
        return get_response(request)

    async def async_middleware(request: HttpRequest) -> Any:
        request.user = SimpleLazyObject(lambda: user_of(request))
        return await get_response(request)

    from asgiref.sync import iscoroutinefunction

    return async_middleware if iscoroutinefunction(get_response) else middleware


class Away(RateLimitMiddleware):
    def open_gate(self) -> SyncGate:
        return SyncGate(RuleEngine(away, parts.AWAY))


class AwayOpen(RateLimitMiddleware):
    def open_gate(self) -> SyncGate:
        return SyncGate(RuleEngine(away, parts.AWAY_OPEN, on_unavailable="allow"))


def hello(request: HttpRequest, id: str = "") -> HttpResponse:
    return HttpResponse("hello")


@limit("50/day")
@limit("2/day; 100/hour")
def both(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@limit("10/day", cost=parts.batch_size, id="batch")
def batch(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@limit()
def unset(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@method_decorator(limit("1 concurrent"), name="dispatch")
class Slow(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(parts.wait(request.GET["key"]))


@method_decorator(limit("1 concurrent"), name="dispatch")
class SlowAsync(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(await parts.wait_async(request.GET["key"]))


class Stream(View):
    @method_decorator(limit("1 concurrent"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(parts.stream(request.GET["key"]))


class StreamAsync(View):
    @method_decorator(limit("1 concurrent"))
    async def get(self, request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(parts.stream_async(request.GET["key"]))


def endless(request: HttpRequest) -> HttpResponse:
    return StreamingHttpResponse(parts.endless())


async def endless_async(request: HttpRequest) -> HttpResponse:
    return StreamingHttpResponse(parts.endless_async())


def broken(request: HttpRequest) -> HttpResponse:
    return StreamingHttpResponse(parts.broken())


async def broken_async(request: HttpRequest) -> HttpResponse:
    return StreamingHttpResponse(parts.broken_async())


def after(request: HttpRequest) -> HttpResponse:
    key = request.GET["key"]

    def work(**_: Any) -> None:
        request_finished.disconnect(work)
        parts.wait(key)

    request_finished.connect(work, weak=False)
    return HttpResponse("hello")


@limit("1 concurrent")
def boom(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("boom")


@limit("1 concurrent")
async def boom_async(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("boom")


def paths(*, is_async: bool) -> list[Any]:
    return [
        *(path(name, hello) for name in PLAIN),
        path("batch", batch),
        path("unset", unset),
        path("both", both),
        path("after", after),
        path("slow", (SlowAsync if is_async else Slow).as_view()),
        path("stream", (StreamAsync if is_async else Stream).as_view()),
        path("endless", endless_async if is_async else endless),
        path("broken", broken_async if is_async else broken),
        path("boom", boom_async if is_async else boom),
    ]


urlpatterns: list[Any] = []


def wsgi() -> Any:
    urlpatterns[:] = paths(is_async=False)
    return get_wsgi_application()


def asgi() -> Any:
    urlpatterns[:] = paths(is_async=True)
    return get_asgi_application()
