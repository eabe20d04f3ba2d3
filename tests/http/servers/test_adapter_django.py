"""What Django makes of views that are limited, and of the settings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django_site
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import FileResponse, HttpRequest, HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, override_settings
from django.urls import path
from django.utils.decorators import async_only_middleware, method_decorator, sync_only_middleware
from django.views import View

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError
from headgate.http.django import limit
from headgate.http.rules import Rule

LIMITED = "headgate.http.django.RateLimitMiddleware"
day = Limit.per_day("day", 1)
shared = SyncRateLimiter("memory://")


@limit("1/day")
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("plain")


@limit("1/day")
async def coroutine(request: HttpRequest) -> HttpResponse:
    return HttpResponse("coroutine")


@limit("5/day", cost=lambda call: int(call.params["number"]))
def costly(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(str(number))


@method_decorator(limit("1/day"), name="dispatch")
class One(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("one")


@method_decorator(limit("1/day"), name="dispatch")
class Two(One):
    """It has the limit of One as well as its own, and neither knows of those who ask One."""


@method_decorator(limit("1/day"), name="dispatch")
class Three(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("three")


@limit("1 concurrent", id="slot")
def unrendered(request: HttpRequest) -> HttpResponse:
    return SimpleTemplateResponse(engines["django"].from_string("{% if oops.oops %}{{ fail }}{% endif %}"), {"oops": 1})


@limit("1 concurrent", id="slot")
def failing(request: HttpRequest) -> HttpResponse:
    return SimpleTemplateResponse("there is no such template")


@limit("1 concurrent", id="slot")
def file(request: HttpRequest) -> HttpResponse:
    return FileResponse(Path(__file__).open("rb"))


@limit("1 concurrent", id="slot")
def slot(request: HttpRequest) -> HttpResponse:
    return HttpResponse("slot")


urlpatterns = [
    path("plain", plain),
    path("coroutine", coroutine),
    path("costly/<int:number>", costly),
    path("one", One.as_view()),
    path("two", Two.as_view()),
    path("three", Three.as_view()),
    path("unrendered", unrendered),
    path("failing", failing),
    path("file", file),
    path("slot", slot),
]


@async_only_middleware
def only_async(get_response: Any) -> Any:
    async def middleware(request: HttpRequest) -> Any:
        return await get_response(request)

    return middleware


@sync_only_middleware
def only_sync(get_response: Any) -> Any:
    return lambda request: get_response(request)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    assert django_site.settings.configured
    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[], TEMPLATES=templates, HEADGATE={"URL": "memory://"}):
        yield


def statuses(path: str, times: int) -> list[int]:
    client = Client(raise_request_exception=False)
    found = []
    for _ in range(times):
        with closing(client.get(path)) as answer:
            found.append(answer.status_code)
    return found


def async_statuses(path: str, times: int) -> list[int]:
    async def ask() -> list[int]:
        client = AsyncClient(raise_request_exception=False)
        found = []
        for _ in range(times):
            answer = await client.get(path)
            await sync_to_async(answer.close)()  # as the server does
            found.append(answer.status_code)
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/plain", "/coroutine", "/one"])
@pytest.mark.parametrize("ask", [statuses, async_statuses])
def test_views_of_all_kinds_under_servers_of_both(path: str, ask: Any) -> None:
    assert ask(path, 3) == [200, 429, 429]


def test_views_of_classes_have_buckets_of_their_own() -> None:
    assert statuses("/one", 2) == [200, 429]
    assert statuses("/two", 2) == [200, 429]
    assert statuses("/three", 2) == [200, 429]
    assert statuses("/costly/3", 2) == [200, 429]
    assert statuses("/costly/2", 1) == [200]


@pytest.mark.parametrize("ask", [statuses, async_statuses])
def test_slots_are_freed_whatever_becomes_of_the_answer(ask: Any) -> None:
    for where, status in (("/failing", 500), ("/unrendered", 200), ("/file", 200), ("/slot", 200)):
        assert ask(where, 2) == [status, status], where


@pytest.mark.parametrize("other", ["only_async", "only_sync"])
@pytest.mark.parametrize("ask", [statuses, async_statuses])
def test_middleware_of_the_other_kind_around_it(other: str, ask: Any) -> None:
    rules = [Rule("all", limits="2/day")]
    name = f"{__name__}.{other}"
    with override_settings(MIDDLEWARE=[name, LIMITED, name], HEADGATE={"URL": "memory://", "RULES": rules}):
        assert ask("/missing", 3) == [404, 404, 429]


def test_headers_of_both_are_sent() -> None:
    rules = [Rule("all", limits="9/hour")]
    with override_settings(MIDDLEWARE=[LIMITED], HEADGATE={"URL": "memory://", "RULES": rules}):
        answer = Client().get("/plain")
    assert answer.headers["RateLimit-Policy"] == '"day";q=1;w=86400, "hour";q=9;w=3600'


def test_a_client_that_goes_while_the_store_is_asked_leaves_no_slot_behind() -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait(call: Any) -> int:
        asked.set()
        answered.wait(60)
        return 1

    @limit("1 concurrent", id="slot", cost=wait)
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("too late")

    async def go_away() -> None:
        request = AsyncRequestFactory().get("/")
        asking = asyncio.ensure_future(view(request))
        await asyncio.to_thread(asked.wait, 60)
        asking.cancel()
        await asyncio.sleep(0)
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(go_away())
    assert statuses("/slot", 1) == [200]


def test_the_settings_name_what_is_to_be_imported() -> None:
    with override_settings(HEADGATE={"LIMITER": f"{__name__}.shared", "EXEMPT": "site_parts.is_vip"}):
        assert statuses("/plain", 2) == [200, 429]
    assert statuses("/plain", 1) == [200]
    assert shared.available("address:127.0.0.1", f"{__name__}.plain", [day]) == {"day": 0}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "must be set"),
        ({}, "URL"),
        ({"URL": "memory://", "LIMITER": SyncRateLimiter("memory://")}, "either URL"),
        ({"URL": "memory://", "RULE": []}, "'RULE'"),
        ({"URL": "memory://", "RULES": "missing.yaml"}, "missing.yaml"),
        ({"LIMITER": RateLimiter("memory://")}, "SyncRateLimiter"),
        ({"URL": "nosuch://"}, "nosuch"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(given: Any, why: str) -> None:
    with (
        override_settings(MIDDLEWARE=[LIMITED], HEADGATE=given),
        pytest.raises((ImproperlyConfigured, ValidationError, OSError), match=why),
    ):
        Client().get("/plain")
