"""What FastAPI makes of endpoints that are limited: the same as of others."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.middleware.base import BaseHTTPMiddleware

from headgate import RateLimiter, SyncRateLimiter, ValidationError
from headgate.http.fastapi import FastAPILimits, RateLimit, RateLimited
from headgate.http.identity import Identity, header


class Item(BaseModel):
    name: str


def somebody(x_user: Annotated[str, Header()]) -> str:
    return x_user


def site(decorate: Callable[[Any], Any]) -> FastAPI:
    app = FastAPI()

    @app.post("/items/{number}", tags=["items"])
    @decorate
    async def make(
        number: int, item: Item, who: Annotated[str, Depends(somebody)], q: Annotated[list[str], Query()]
    ) -> dict[str, Any]:
        """Make an item."""
        return {"number": number, "name": item.name, "who": who, "q": q}

    @app.get("/items")
    @decorate
    def find(limit: int = 10, *, request: Request) -> list[Item]:
        return [Item(name=f"{limit} {request.url.path} {threading.current_thread() is threading.main_thread()}")]

    @app.get("/lines")
    @decorate
    async def lines() -> AsyncIterator[Item]:
        yield Item(name="first")
        yield Item(name="last")

    return app


Ask = Callable[..., Coroutine[Any, Any, httpx.Response]]


def drive(app: FastAPI, talk: Callable[[Ask], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            await talk(lambda path, method="GET", **how: client.request(method, path, **how))

    asyncio.run(run())


@pytest.fixture
def limits() -> FastAPILimits:
    return FastAPILimits(RateLimiter("memory://"), identity=Identity(user=header("x-user")))


MALFORMED: list[dict[str, Any]] = [
    {"content": b"{", "headers": {"content-type": "application/json"}},
    {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}},
    {"json": {"nome": 1}},
    {"content": b"name=1"},
]


def limited_post(limits: FastAPILimits, how: str) -> FastAPI:
    app = FastAPI()
    check = RateLimit(limits, "2/day")
    router = APIRouter(dependencies=[Depends(check)] if how == "router" else [])

    async def make(item: Item) -> str:
        return item.name

    if how == "decorator":
        make = limits.limit("2/day")(make)
    router.post("/items", dependencies=[Depends(check)] if how == "dependency" else [])(make)
    app.include_router(router)
    return app


@pytest.mark.parametrize("how", ["decorator", "dependency", "router"])
@pytest.mark.parametrize("sent", MALFORMED, ids=["json", "not utf-8", "field", "form"])
def test_malformed_body_counts_like_any_other_request(limits: FastAPILimits, how: str, sent: dict[str, Any]) -> None:
    async def talk(ask: Ask) -> None:
        replies = [await ask("/items", "POST", **sent) for _ in range(4)]
        assert [reply.status_code for reply in replies][2:] == [429, 429]
        assert {reply.status_code for reply in replies[:2]} <= {400, 422}
        assert replies[-1].headers["content-type"] == "application/problem+json"
        assert (await ask("/items", "POST", json={"name": "hat"})).status_code == 429

    drive(limited_post(limits, how), talk)


def test_malformed_body_holds_no_slot(limits: FastAPILimits) -> None:
    app = FastAPI()

    @app.post("/items")
    @limits.limit("1 concurrent")
    async def make(item: Item) -> str:
        return item.name

    async def talk(ask: Ask) -> None:
        assert [(await ask("/items", "POST", **MALFORMED[0])).status_code for _ in range(3)] == [422] * 3
        assert (await ask("/items", "POST", json={"name": "hat"})).status_code == 200

    drive(app, talk)


@pytest.mark.parametrize("how", ["decorator", "dependency", "router"])
def test_well_formed_body_counts_once(limits: FastAPILimits, how: str) -> None:
    async def talk(ask: Ask) -> None:
        statuses = [(await ask("/items", "POST", json={"name": "hat"})).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]

    drive(limited_post(limits, how), talk)


def test_dependency_that_refuses_before_the_limit_is_not_counted(limits: FastAPILimits) -> None:
    app = FastAPI()

    def login(x_user: Annotated[str | None, Header()] = None) -> None:
        if x_user is None:
            raise HTTPException(401)

    @app.post("/items", dependencies=[Depends(login), Depends(RateLimit(limits, "1/day", per="everyone"))])
    async def make(item: Item) -> str:
        return item.name

    async def talk(ask: Ask) -> None:
        assert [(await ask("/items", "POST", json={"name": "hat"})).status_code for _ in range(3)] == [401] * 3
        user = {"x-user": "ann"}
        assert (await ask("/items", "POST", json={"name": "hat"}, headers=user)).status_code == 200
        assert (await ask("/items", "POST", json={"name": "hat"}, headers=user)).status_code == 429

    drive(app, talk)


def test_limit_that_a_test_overrides_counts_nothing(limits: FastAPILimits) -> None:
    app = FastAPI()
    check = RateLimit(limits, "1/day")

    @app.post("/items", dependencies=[Depends(check)])
    async def make(item: Item) -> str:
        return item.name

    app.dependency_overrides[check] = lambda: None

    async def talk(ask: Ask) -> None:
        assert [(await ask("/items", "POST", **MALFORMED[0])).status_code for _ in range(3)] == [422] * 3

    drive(app, talk)


def test_the_openapi_document_stays_as_it_is(limits: FastAPILimits) -> None:
    plain = site(lambda endpoint: endpoint).openapi()
    assert site(limits.limit("2/day")).openapi() == plain
    assert site(lambda endpoint: limits.limit("2/day")(limits.limit("9/hour")(endpoint))).openapi() == plain
    assert "Item" in plain["components"]["schemas"]


def test_endpoints_get_what_they_ask_for(limits: FastAPILimits) -> None:
    async def talk(ask: Ask) -> None:
        made = {"json": {"name": "hat"}, "headers": {"x-user": "ann"}}
        answer = await ask("/items/5?q=a&q=b", "POST", **made)
        assert answer.json() == {"number": 5, "name": "hat", "who": "ann", "q": ["a", "b"]}
        assert answer.headers["ratelimit"].startswith('"day";r=1')
        assert (await ask("/items?limit=3")).json() == [{"name": "3 /items False"}]  # in a thread, as without
        lines = await ask("/lines")
        assert lines.text.split() == ['{"name":"first"}', '{"name":"last"}']
        assert "ratelimit" in lines.headers
        # A request that is wrong counts too.
        assert (await ask("/items/x", "POST", **made)).status_code == 422
        refused = await ask("/items/x", "POST", **made)
        assert (refused.status_code, refused.headers["content-type"]) == (429, "application/problem+json")
        assert (await ask("/items")).status_code == 200  # each endpoint has its own

    drive(site(limits.limit("2/day")), talk)


def test_annotations_mean_what_they_mean_where_they_are_written(limits: FastAPILimits) -> None:
    @limits.limit("1/day")
    async def endpoint(item: Item, **more: int) -> Item:
        return item

    signature = inspect.signature(endpoint)
    assert signature.parameters["item"].annotation is signature.return_annotation is Item
    assert list(signature.parameters)[-1] == "more"


def test_endpoints_can_be_called_without_fastapi(limits: FastAPILimits) -> None:
    @limits.limit("1/day")
    async def double(number: int) -> int:
        return 2 * number

    @limits.limit("1/day")
    def triple(number: int) -> int:
        return 3 * number

    assert [asyncio.run(double(2)) for _ in range(3)] == [4, 4, 4]
    assert triple(number=2) == 6


def test_a_decorator_in_between_is_not_left_out(limits: FastAPILimits) -> None:
    app = FastAPI()

    def forbidden(endpoint: Any) -> Any:
        @wraps(endpoint)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            raise HTTPException(403)

        return guarded

    @app.get("/")
    @limits.limit("100/day")
    @forbidden
    @limits.limit("50/day")
    async def secret() -> str:
        return "secret"

    async def talk(ask: Ask) -> None:
        assert (await ask("/")).status_code == 403

    drive(app, talk)


def test_limits_of_routers_and_endpoints_do_not_get_mixed_up(limits: FastAPILimits) -> None:
    app = FastAPI(dependencies=[Depends(RateLimit(limits, "100/day"))])
    router = APIRouter(dependencies=[Depends(RateLimit(limits, "5/day", id="shared"))])

    @router.get("/a", dependencies=[Depends(RateLimit(limits, "4/day"))])
    @limits.limit("3/day")
    async def a() -> JSONResponse:
        return JSONResponse("a")

    @router.get("/b")
    async def b() -> str:
        return "b"

    app.include_router(router)

    async def talk(ask: Ask) -> None:
        answers = [await ask("/a") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[0].headers["ratelimit-policy"].startswith('"day";q=3')  # of the decorator
        # The dependencies before it were asked before it refused.
        answer = await ask("/b")
        assert answer.headers.get_list("ratelimit-policy") == ['"day";q=100;w=86400', '"day";q=5;w=86400']
        assert [item.split(";")[1] for item in answer.headers.get_list("ratelimit")] == ["r=99", "r=0"]
        assert (await ask("/b")).status_code == 429

    drive(app, talk)


def test_an_application_may_answer_refusals_itself(limits: FastAPILimits) -> None:
    app = site(limits.limit("1/day"))

    @app.exception_handler(RateLimited)
    async def answer(request: Request, error: RateLimited) -> JSONResponse:
        return JSONResponse({"wait": error.headers["Retry-After"]}, error.status_code)

    async def talk(ask: Ask) -> None:
        await ask("/items")
        refused = await ask("/items")
        assert refused.status_code == 429
        assert 0 < int(refused.json()["wait"]) <= 86400

    drive(app, talk)


def test_a_cost_sees_the_parameters_of_the_path(limits: FastAPILimits) -> None:
    app = FastAPI()

    @app.get("/take/{number}")
    @limits.limit("10/day", cost=lambda call: int(call.params["number"]))
    async def take(number: int) -> str:
        return "taken"

    async def talk(ask: Ask) -> None:
        assert (await ask("/take/7")).status_code == 200
        assert (await ask("/take/4")).status_code == 429
        assert (await ask("/take/3")).status_code == 200

    drive(app, talk)


def test_a_body_that_is_not_read_does_not_matter(limits: FastAPILimits) -> None:
    app = FastAPI()

    @app.post("/")
    @limits.limit("1/day")
    async def upload(data: Annotated[bytes, Body()]) -> int:
        return len(data)

    async def talk(ask: Ask) -> None:
        for status in (200, 429):
            answer = await ask("/", "POST", content=b"x" * 100_000, headers={"content-type": "text/plain"})
            assert answer.status_code == status

    drive(app, talk)


def test_behind_other_middleware_slots_are_freed(limits: FastAPILimits) -> None:
    app = FastAPI()

    async def passes(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=passes)

    async def lines() -> AsyncIterator[bytes]:
        yield b"first"
        yield b"last"

    @app.get("/")
    @limits.limit("1 concurrent")
    async def stream() -> StreamingResponse:
        return StreamingResponse(lines())

    async def talk(ask: Ask) -> None:
        for _ in range(3):
            assert (await ask("/")).text == "firstlast"

    drive(app, talk)


def test_what_is_wrong_is_said_where_it_is_written(limits: FastAPILimits) -> None:
    with pytest.raises(ValidationError, match="often"):
        limits.limit("often")
    with pytest.raises(ValidationError, match="per must be"):
        RateLimit(limits, "1/day", per="planet")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="RateLimitMiddleware"):
        FastAPILimits(RateLimiter("memory://"), exempt_paths=["/health"])
    with pytest.raises(ValidationError, match="on_unavailable"):
        RateLimit(limits, "1/day", on_unavailable="allow")
    with pytest.raises(ValidationError, match="RateLimiter"):
        RateLimit(SyncRateLimiter("memory://"), "1/day")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="id"):
        limits.limit("1/day", id="no spaces please")
