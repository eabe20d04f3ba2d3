"""Flask with the extension: some limits are rules, some are on views of several kinds."""

from __future__ import annotations

import site_parts as parts
from flask import Blueprint, Flask, Response, request
from flask.views import MethodView

from headgate import SyncRateLimiter
from headgate.http.flask import Headgate

ON_VIEWS = ("both", "both-more", "slow", "stream", "boom", "batch", "unset")
limiter = SyncRateLimiter("memory://")
away = SyncRateLimiter(parts.AWAY_URL)
headgate = Headgate(limiter, [rule for rule in parts.RULES if rule.id not in ON_VIEWS], **parts.SETTINGS)

app = Flask(__name__)
headgate.init_app(app)
Headgate(away, parts.AWAY, app=app)
Headgate(away, parts.AWAY_OPEN, app=app, on_unavailable="allow")
views = Blueprint("views", __name__)


@app.get("/hello")
@app.get("/users/<id>")
@app.get("/away")
@app.get("/away-open")
@app.get("/exempt")
@app.get("/aside")
@app.route("/limited", methods=["GET", "POST"])
def hello(id: str = "") -> str:
    return "hello"


@views.get("/both")
@headgate.limit("50/day")
@headgate.limit("2/day; 100/hour")
def both() -> str:
    return "hello"


@views.get("/batch")
@headgate.limit("10/day", cost=parts.batch_size, id="batch")
def batch() -> str:
    return "hello"


@views.get("/unset")
@headgate.limit()
def unset() -> str:
    return "hello"


class Slow(MethodView):
    decorators = (headgate.limit("1 concurrent"),)

    def get(self) -> str:
        return parts.wait(request.args["key"])


class Stream(MethodView):
    @headgate.limit("1 concurrent")
    def get(self) -> Response:
        return Response(parts.stream(request.args["key"]))


@app.get("/endless")
def endless() -> Response:
    return Response(parts.endless())


@app.get("/broken")
def broken() -> Response:
    return Response(parts.broken())


@app.get("/after")
def after() -> Response:
    key = request.args["key"]
    response = Response("hello")
    response.call_on_close(lambda: parts.wait(key))
    return response


@views.get("/boom")
@headgate.limit("1 concurrent")
def boom() -> None:
    raise RuntimeError("boom")


views.add_url_rule("/slow", view_func=Slow.as_view("slow"))
views.add_url_rule("/stream", view_func=Stream.as_view("stream"))
app.register_blueprint(views)
