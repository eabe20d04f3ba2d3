"""Flask: an extension that applies rules to all requests, and limits on single views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from flask import Flask, current_app, request
from flask.typing import ResponseReturnValue
from flask.wrappers import Response

from ..core.errors import ValidationError
from ..limiter import SyncRateLimiter
from .answer import HttpRefusal
from .call import BadPath
from .engine import RuleEngine, SyncGate, bad_path
from .fields import REJECT, BadCostChoice, Cost, Per
from .rule_set import RulesSpec
from .rules import Match
from .views import ViewLimit, mark, matches, name_of, stacked
from .wsgi import EndingBody, Environ, WsgiApp, WsgiCall

__all__ = ["Headgate"]

F = TypeVar("F", bound=Callable[..., Any])

_EXEMPT = "__headgate_exempt__"
_HEADERS = "headgate.headers"
_LEASES = "headgate.leases"


class Headgate:
    """`Headgate(limiter, rules, app=app)`, or without the app, and `init_app(app)` later.

    It takes the settings of `RuleEngine`. Functions among them are called within the context of the request, where
    `request`, `session` and the like are available. The decision is in `request.environ["headgate"]`.
    """

    def __init__(
        self, limiter: SyncRateLimiter, rules: RulesSpec = (), *, app: Flask | None = None, **settings: Any
    ) -> None:
        self.gate = SyncGate(RuleEngine(limiter, rules, **settings))
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Apply the rules, and the limits of views, to an application."""
        app.extensions["headgate"] = self
        app.before_request(self._before)
        app.after_request(_add_headers)
        app.wsgi_app = _Ending(app.wsgi_app, self.gate.end)  # type: ignore[method-assign]

    def limit(
        self,
        limits: Any = None,
        *,
        id: str | None = None,
        cost: Cost = 1,
        per: Per = "caller",
        shadow: bool = False,
        bad_cost: BadCostChoice = REJECT,
    ) -> Callable[[F], F]:
        """A limit on a view, below `@app.route(...)`, or in the `decorators` of a class, or on one of its methods."""
        added = ViewLimit(limits, id=id, cost=cost, per=per, shadow=shadow, bad_cost=bad_cost)

        def decorate(decorated: F) -> F:
            view, all_limits = stacked(decorated, added)

            @wraps(view)
            def limited(*args: Any, **kwargs: Any) -> Any:
                name = name_of(view, getattr(_current_view(), "view_class", None))
                refusal = self._check(matches(all_limits, name, request.view_args or {}, request.environ))
                return current_app.ensure_sync(view)(*args, **kwargs) if refusal is None else refusal

            marked: F = mark(limited, view, all_limits)
            return marked

        return decorate

    def exempt(self, view: F) -> F:
        """Do not apply the rules to this view."""
        setattr(view, _EXEMPT, True)
        return view

    def _before(self) -> ResponseReturnValue | None:
        return None if getattr(_current_view(), _EXEMPT, False) else self._check()

    def _check(self, found: list[Match] | None = None) -> Response | None:
        """The response to a refused request, or None."""
        if "headgate" not in current_app.extensions:
            raise ValidationError("the limits of this application's views are not set up: call init_app(app)")
        environ = request.environ
        try:
            verdict = self.gate.check(WsgiCall(environ), found)
        except BadPath as error:
            verdict = bad_path(error)
        if isinstance(verdict, HttpRefusal):
            return current_app.response_class(verdict.body, verdict.status, verdict.headers)
        environ["headgate"] = verdict.decision
        environ.setdefault(_HEADERS, []).extend(verdict.headers)
        environ.setdefault(_LEASES, []).extend(verdict.leases)
        return None


def _current_view() -> Any:
    return current_app.view_functions.get(request.endpoint or "")


def _add_headers(response: Response) -> Response:
    for name, value in request.environ.pop(_HEADERS, ()):
        response.headers.add(name, value)
    return response


class _Ending:
    """Ends leases when the whole response is sent or abandoned."""

    def __init__(self, app: WsgiApp, end: Callable[[Iterable[Any]], None]) -> None:
        self._app = app
        self._end = end

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            body = self._app(environ, start_response)
        except BaseException:
            self._end(environ.pop(_LEASES, ()))
            raise
        leases = environ.pop(_LEASES, ())
        return EndingBody(body, self._end, leases) if leases else body
