"""What Flask makes of views that are limited."""

from __future__ import annotations

from functools import wraps
from io import BytesIO
from typing import Any

import pytest
from flask import Flask, Response, abort, g, send_file
from flask.views import MethodView

from headgate import SyncRateLimiter, ValidationError
from headgate.http.flask import Headgate
from headgate.http.identity import Identity
from headgate.http.rules import Rule


@pytest.fixture
def headgate() -> Headgate:
    return Headgate(SyncRateLimiter("memory://"))


@pytest.fixture
def app(headgate: Headgate) -> Flask:
    app = Flask(__name__)
    headgate.init_app(app)
    return app


def statuses(app: Flask, path: str, times: int, **how: Any) -> list[int]:
    client = app.test_client()
    return [client.open(path, **how).status_code for _ in range(times)]


def test_an_exempt_view_is_not_limited_and_others_are() -> None:
    app = Flask(__name__)
    headgate = Headgate(SyncRateLimiter("memory://"), [Rule("all", limits="2/day")], app=app)

    @app.get("/free")
    @headgate.exempt
    def free() -> str:
        return "free"

    @app.get("/other")
    def other() -> str:
        return "other"

    assert statuses(app, "/free", 5) == [200] * 5
    assert statuses(app, "/other", 2) == [200, 200]
    assert statuses(app, "/other", 1) == statuses(app, "/missing", 1) == [429]
    assert statuses(app, "/free", 1) == [200]


def test_views_of_classes_have_buckets_of_their_own(app: Flask, headgate: Headgate) -> None:
    class One(MethodView):
        decorators = (headgate.limit("1/day"),)

        def get(self) -> str:
            return "one"

    class Two(One):
        @headgate.limit("1/day")
        def post(self) -> str:
            return "two"

    class Three(Two):
        """One limit stands on the class, another on its method."""

    for kind in (One, Two, Three):
        app.add_url_rule(f"/{kind.__name__}", view_func=kind.as_view(kind.__name__))
    assert statuses(app, "/One", 2) == [200, 429]
    assert statuses(app, "/Two", 1) == [200]
    assert statuses(app, "/Two", 1, method="POST") == [429]  # the limit of the class counts all methods
    assert statuses(app, "/Three", 2, method="POST") == [200, 429]


def test_a_coroutine_function_is_a_view_too(app: Flask, headgate: Headgate) -> None:
    @app.get("/<int:number>")
    @headgate.limit("5/day", cost=lambda call: int(call.params["number"]))
    async def view(number: int) -> str:
        return str(number)

    assert statuses(app, "/3", 2) == [200, 429]
    assert statuses(app, "/2", 1) == [200]


def test_a_decorator_in_between_is_not_left_out(app: Flask, headgate: Headgate) -> None:
    def forbidden(view: Any) -> Any:
        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            abort(403)

        return guarded

    @app.get("/")
    @headgate.limit("2/day")
    @forbidden
    @headgate.limit("1/day")
    def secret() -> str:
        return "secret"

    assert statuses(app, "/", 3) == [403, 403, 429]


def test_identities_know_the_request() -> None:
    app = Flask(__name__)

    @app.before_request
    def log_in() -> None:
        g.name = "ann"

    callers = []

    def user(call: Any) -> str:
        callers.append(g.name)
        return str(g.name)

    Headgate(SyncRateLimiter("memory://"), [Rule("all", limits="1/day")], app=app, identity=Identity(user=user))
    assert statuses(app, "/", 2) == [404, 429]
    assert callers == ["ann", "ann"]


def test_slots_are_freed_whatever_becomes_of_the_answer(app: Flask, headgate: Headgate) -> None:
    app.testing = True  # errors come out

    @app.get("/file")
    @headgate.limit("1 concurrent", id="slot")
    def file() -> Response:
        return send_file(BytesIO(b"data"), "text/plain")

    @app.get("/boom")
    @headgate.limit("1 concurrent", id="slot")
    def boom() -> None:
        raise RuntimeError("boom")

    @app.get("/none")
    @headgate.limit("1 concurrent", id="slot")
    def none() -> tuple[str, int]:
        return "", 204

    client = app.test_client()
    for _ in range(2):
        with client.get("/file") as response:
            with client.get("/none") as refused:
                assert refused.status_code == 429
            assert response.data == b"data"
            with client.get("/none") as passed:
                assert passed.status_code == 204, "all of the answer was sent"
        with pytest.raises(RuntimeError, match="boom"):
            client.get("/boom")
        with client.get("/none") as nothing:
            assert nothing.status_code == 204


def test_an_application_that_was_forgotten(headgate: Headgate) -> None:
    app = Flask(__name__)
    app.testing = True

    @app.get("/")
    @headgate.limit("1/day")
    def view() -> str:
        return "view"

    with pytest.raises(ValidationError, match="init_app"):
        app.test_client().get("/")
