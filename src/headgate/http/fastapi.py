"""FastAPI: limits as dependencies and decorators. For a whole application, use the middleware in `asgi.py`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from fastapi import Depends, Request, routing
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from ..core.errors import ValidationError
from ..limiter import RateLimiter
from .answer import HttpRefusal
from .asgi import AsgiCall, Ending
from .call import BadPath
from .engine import PASS, AsyncGate, Passed, RuleEngine, Verdict, bad_path
from .fields import REJECT, BadCostChoice, Cost, Per
from .views import ViewLimit, mark, matches, name_of, stacked

__all__ = ["FastAPILimits", "RateLimit", "RateLimited"]

F = TypeVar("F", bound=Callable[..., Any])

_HANDLERS = "starlette.exception_handlers"
_HIDDEN = "_headgate"
_ASKED = "headgate.asked"
_ENDINGS = "headgate.endings"
_MALFORMED = (400, 422)


class RateLimited(HTTPException):
    """Raised by a dependency to refuse a request. An application may have its own handler for it."""

    def __init__(self, refusal: HttpRefusal) -> None:
        headers = {name: value for name, value in refusal.headers if name.lower() != "content-type"}
        super().__init__(refusal.status, headers=headers)
        self.refusal = refusal


class FastAPILimits:
    """`limits = FastAPILimits(limiter, identity=...)`, and then `@limits.limit("10/minute")` below `@app.get(...)`.

    It takes the settings of `RuleEngine`, except for rules, which belong to the middleware.
    `RateLimit(limits, "10/minute")` is a dependency with the same settings.
    """

    def __init__(self, limiter: RateLimiter, **settings: Any) -> None:
        for name in settings.keys() & {"rules", "exempt_paths"}:
            raise ValidationError(f"{name} is about paths: pass it to RateLimitMiddleware instead")
        self.gate = AsyncGate(RuleEngine(limiter, **settings))

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
        """A limit on an endpoint, which needs no `request` parameter. Its OpenAPI entry does not change."""
        added = ViewLimit(limits, id=id, cost=cost, per=per, shadow=shadow, bad_cost=bad_cost)

        def decorate(endpoint: F) -> F:
            view, all_limits = stacked(endpoint, added)
            limited: F = mark(_checked_first(view, _Check(self.gate, all_limits)), view, all_limits)
            return limited

        return decorate


class _Check:
    """A dependency that checks limits before the endpoint runs, and ends their leases when the response is sent.

    FastAPI reads the body before it calls any dependency: see `_counting_malformed`.
    """

    def __init__(self, gate: AsyncGate, limits: tuple[ViewLimit, ...]) -> None:
        self._gate = gate
        self._limits = limits
        # FastAPI does not resolve the annotations of a callable object by itself.
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter("connection", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=HTTPConnection),
                inspect.Parameter("response", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Response),
            ]
        )

    async def __call__(self, connection: HTTPConnection, response: Response) -> AsyncIterator[Passed]:
        scope = connection.scope
        if scope["type"] != "http":
            yield PASS
            return
        verdict = await self._ask(connection)
        ending = Ending(self._gate.end, verdict.leases)
        if verdict.leases:
            scope.setdefault(_ENDINGS, []).append(ending)
        try:
            _add_headers(response, verdict)
            yield verdict
        finally:
            await ending()

    async def _ask(self, connection: HTTPConnection) -> Passed:
        """Raises RateLimited if the request is refused."""
        scope = connection.scope
        scope.setdefault(_ASKED, []).append(self)
        name = name_of(scope.get("endpoint") or RateLimit)
        try:
            verdict = await self._gate.check(
                AsgiCall(scope), matches(self._limits, name, connection.path_params, scope)
            )
        except BadPath as error:
            verdict = bad_path(error)
        if isinstance(verdict, HttpRefusal):
            if _HANDLERS in scope:
                scope[_HANDLERS][0].setdefault(RateLimited, _answer)
            raise RateLimited(verdict)
        return verdict

    async def _count(self, connection: HTTPConnection) -> None:
        """Count a request that does not reach the endpoint."""
        await self._gate.end((await self._ask(connection)).leases)


class RateLimit(_Check):
    """`Depends(RateLimit(limiter, "10/minute"))`, on an endpoint, a router or the application.

    Without an `id`, each endpoint has its own buckets; with one, all endpoints that depend on it share them. Pass
    `FastAPILimits` instead of the limiter, or the settings of `RuleEngine`. An endpoint can read its `decision`.
    """

    def __init__(
        self,
        limiter: RateLimiter | FastAPILimits,
        limits: Any = None,
        *,
        id: str | None = None,
        cost: Cost = 1,
        per: Per = "caller",
        shadow: bool = False,
        bad_cost: BadCostChoice = REJECT,
        **settings: Any,
    ) -> None:
        if not isinstance(limiter, FastAPILimits):
            limiter = FastAPILimits(limiter, **settings)
        elif settings:
            raise ValidationError(f"{', '.join(settings)}: pass it to FastAPILimits, which has the settings here")
        limit = ViewLimit(limits, id=id, cost=cost, per=per, shadow=shadow, bad_cost=bad_cost)
        super().__init__(limiter.gate, (limit,))


async def _answer(request: Any, error: Any) -> Response:
    response = Response(error.refusal.body, error.refusal.status)
    _add_headers(response, error.refusal)
    return response


def _add_headers(response: Response, verdict: Verdict) -> None:
    for name, value in verdict.headers:
        response.headers.append(name, value)


def _checked_first(endpoint: Callable[..., Any], check: _Check) -> Callable[..., Any]:
    """The endpoint, with a dependency among its parameters that is not passed on to it."""
    signature = _signature(endpoint)
    hidden = _HIDDEN
    while hidden in signature.parameters:  # of a limit further inside
        hidden += "_"

    def ended(answer: Any, passed: Passed) -> Any:
        if isinstance(answer, Response):  # FastAPI does not add the headers of dependencies to it
            _add_headers(answer, passed)
        return answer

    if inspect.iscoroutinefunction(endpoint):

        @wraps(endpoint)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            passed = kwargs.pop(hidden, PASS)
            return ended(await endpoint(*args, **kwargs), passed)

    else:

        @wraps(endpoint)
        def limited(*args: Any, **kwargs: Any) -> Any:
            passed = kwargs.pop(hidden, PASS)
            return ended(endpoint(*args, **kwargs), passed)

    added = inspect.Parameter(hidden, inspect.Parameter.KEYWORD_ONLY, annotation=Passed, default=Depends(check))
    parameters = sorted([*signature.parameters.values(), added], key=lambda parameter: parameter.kind)
    limited.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return limited


def _signature(endpoint: Callable[..., Any]) -> inspect.Signature:
    """With annotations resolved where the endpoint is defined: FastAPI might resolve them in the wrapper's module."""
    try:
        return inspect.signature(endpoint, eval_str=True)
    except Exception:  # FastAPI reports what is wrong with them
        return inspect.signature(endpoint)


def _counting_malformed(get_request_handler: Callable[..., Any]) -> Callable[..., Any]:
    """FastAPI's function that makes the handler of a route, with limits that apply to malformed requests too.

    FastAPI refuses a body that it cannot parse before it calls any dependency, so the handler must count it.
    """

    @wraps(get_request_handler)
    def get_limited(dependant: Any, *args: Any, **kwargs: Any) -> Any:
        handler = get_request_handler(dependant, *args, **kwargs)
        checks = list(_checks_of(dependant))
        if not checks:
            return handler

        @wraps(handler)
        async def limited(request: Request) -> Response:
            try:
                response: Response = await handler(request)
            except (RequestValidationError, HTTPException) as error:
                if isinstance(error, RequestValidationError) or error.status_code in _MALFORMED:
                    overridden = getattr(kwargs.get("dependency_overrides_provider"), "dependency_overrides", {})
                    for check in checks:
                        if check not in request.scope.get(_ASKED, ()) and check not in overridden:
                            await check._count(request)
                raise
            if endings := request.scope.get(_ENDINGS):
                response.background = _EndFirst(endings, response.background)
            return response

        return limited

    return get_limited


def _checks_of(dependant: Any) -> Iterator[_Check]:
    for one in dependant.dependencies:
        yield from _checks_of(one)
        if isinstance(one.call, _Check):
            yield one.call


class _EndFirst(BackgroundTask):
    """Frees slots when the response is sent, before the application's background tasks run."""

    def __init__(self, endings: list[Ending], then: BackgroundTask | None) -> None:
        self._endings = endings
        # An application may keep a response, and send it repeatedly.
        self._then: BackgroundTask | None = then._then if isinstance(then, _EndFirst) else then

    async def __call__(self) -> None:
        for ending in self._endings:
            await ending()
        if self._then is not None:
            await self._then()


routing.get_request_handler = _counting_malformed(routing.get_request_handler)
