"""One request of a client: it waits for its turn, is sent, and its response is counted.

| outcome | requests and the like | tokens |
|---|---|---|
| it was never sent | given back | given back |
| no response, or 5xx: the vendor may have counted it | kept | kept as estimated |
| 2xx | kept | as the response says, otherwise as estimated |
| 3xx, 4xx: the vendor did no work | kept | given back |

After a 429, no request passes for as long as the vendor says, in any process that shares the bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict
from urllib.parse import urlsplit

from ...core.errors import RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ...core.units import wait_to_ms
from ...limiter import Decision, Dimension, Lease, OnUnavailable, RateLimiter, SyncLease, SyncRateLimiter, VendorSync
from ...limiter.acquire.chain import ONE_OF_EACH
from ...limiter.acquire.options import check_on_unavailable
from ...limiter.base import BaseLimiter
from ...limiter.vendor.dimensions import dimension_of
from ...limiter.vendor.sync import NAMES
from ...plan import Plan
from .steps import Do, Finish
from .usage import Usage, UsageReader, is_events

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("headgate")

Estimate: TypeAlias = "Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None]"
Unsent: TypeAlias = "Callable[[BaseException], bool]"
Which: TypeAlias = "Callable[[Any], str | None]"
Dimensions: TypeAlias = "str | Which | Mapping[str, str | Which]"

_TOKENS = ("tokens", "input_tokens", "output_tokens")
_TOO_MANY = 429
# For vendors that answer 429 without saying for how long.
_BACK_OFF_SECONDS = 1
_DEFAULT_PORTS = {"http": 80, "https": 443}


class GateOptions(TypedDict, total=False):
    """`consume`: the estimated amounts of a request, or a function of the request. Default: one of every limit.

    `usage`: a function that finds the real usage in a response's JSON, such as `token_usage`.
    `timeout`: seconds that a request waits for its turn; 0: not at all.
    `limits`, `names`, `on_unavailable`: as in `slot` and `sync_from_headers` of the limiter.
    """

    consume: Estimate | None
    usage: Usage | None
    timeout: float
    limits: Iterable[Limit] | None
    names: Mapping[str, str] | None
    on_unavailable: OnUnavailable | None


class Gate:
    """What all requests of a client share. `unsent` recognizes errors of requests that were never sent."""

    def __init__(
        self,
        limiter: SyncRateLimiter | RateLimiter,
        dimension: Dimensions,
        unsent: Unsent,
        kind: type[SyncRateLimiter] | type[RateLimiter],
        **options: Unpack[GateOptions],
    ) -> None:
        if not isinstance(limiter, kind):
            raise ValidationError(f"this client needs a {kind.__name__}, not {type(limiter).__name__}")
        unknown = options.keys() - GateOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"unexpected argument {min(unknown)!r}; there are: {', '.join(GateOptions.__annotations__)}"
            )
        self.limiter = limiter
        self.unsent = unsent
        self.which = which(limiter, dimension)
        self.consume = options.get("consume")
        self.usage = options.get("usage")
        self.timeout = options.get("timeout", 30)
        wait_to_ms(self.timeout, "timeout")
        limits = options.get("limits")
        self.limits = None if limits is None else list(limits)
        self.names = dict(options.get("names") or {})
        self.on_unavailable = options.get("on_unavailable")
        if self.on_unavailable is not None:
            check_on_unavailable(self.on_unavailable)
        self._warned = False

    def send_plan(
        self, request: Any, send: Callable[[], Any], close: Callable[[Any], Any]
    ) -> Plan[tuple[Any, HttpExchange | None]]:
        """The response, and the exchange, if there is one: feed it with the body, and end it."""
        dimension = self.which(request)
        if dimension is None:
            return (yield from Do(send)), None
        exchange = yield from self._take_plan(request, dimension_of(self.limiter.engine, dimension))
        response: Any = None
        try:
            response = yield from Do(send)
            yield from Finish(exchange.answered_plan(response))
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from Finish(exchange.given_up_plan(error, None if response is None else partial(close, response)))
            raise
        if not getattr(response, "is_closed", False):
            return response, exchange
        exchange.feed(response.content)  # the body has been read already
        yield from Finish(exchange.end_plan())
        return response, None

    def _take_plan(self, request: Any, dimension: Dimension) -> Plan[HttpExchange]:
        consume = self.consume(request) if callable(self.consume) else self.consume
        decision: Decision[Any] = yield from Do(
            partial(
                self.limiter.try_acquire,
                *dimension,
                ONE_OF_EACH if consume is None else consume,
                self.limits,
                max_wait=self.timeout,
                on_unavailable=self.on_unavailable,
            )
        )
        if decision.lease is None:
            raise RateLimitExceeded(decision.statuses)
        return HttpExchange(self, dimension, decision.lease)

    def names_of(self, kind: str) -> tuple[str, ...]:
        """The possible names of a limit on "tokens", the most likely first. A limit's own name is one of them."""
        return tuple(name for name in (self.names.get(kind), NAMES.get(kind), kind) if name is not None)

    def warn(self, error: Exception) -> None:
        """Warn once: the same mistake happens at every request."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        log.log(level, "a response could not be counted; what was taken for its request stays taken: %s", error)


class HttpExchange:
    """A request, and its response until the end of the body."""

    def __init__(self, gate: Gate, dimension: Dimension, lease: Lease | SyncLease) -> None:
        self._gate = gate
        self._dimension = dimension
        self._lease = lease
        self._reader: UsageReader | None = None
        self._unheard: Mapping[str, str] | None = None
        self._ended = False

    def feed(self, data: bytes) -> None:
        """A piece of the body, decoded."""
        if self._reader is not None:
            try:
                self._reader.feed(data)
            except Exception as error:  # raised by the `usage` function
                self._reader = None
                self._gate.warn(error)

    def answered_plan(self, response: Any) -> Plan[None]:
        """The status and headers have arrived, the body has not."""
        status: int = response.status_code
        if status < 300:
            self._reader = UsageReader.of(response.headers, self._gate.usage)
        if status < 300 and not is_events(response.headers):
            # The headers give what is left after this call: correct our own count first, then compare.
            self._unheard = response.headers
            return
        yield from self._quietly(self._heard_plan(status, response))

    def end_plan(self, error: BaseException | None = None) -> Plan[None]:
        """The body has been read or abandoned, or there is none. Later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        if error is not None and self._gate.unsent(error):
            yield from self._quietly(Do(self._lease.rollback))
            return
        yield from self._quietly(self._counted_plan())
        yield from self._quietly(Do(self._lease.commit))

    def given_up_plan(self, error: BaseException, close: Callable[[], Any] | None) -> Plan[None]:
        """The response will not be read: there is none, or the request was cancelled."""
        if close is not None:
            yield from self._quietly(Do(close))
        yield from self.end_plan(error)

    def _heard_plan(self, status: int, response: Any) -> Plan[None]:
        if 300 <= status < 500:
            yield from self._correct_plan(dict.fromkeys(_TOKENS, 0))
        said: VendorSync = yield from Do(partial(self._lease.sync_from_headers, response, names=self._gate.names))
        if status == _TOO_MANY and said.penalized_seconds is None and not self._lease.degraded:
            penalize = partial(self._gate.limiter.penalize, *self._dimension, limits=self._gate.limits)
            yield from Do(partial(penalize, seconds=_BACK_OFF_SECONDS))

    def _counted_plan(self) -> Plan[None]:
        if self._reader is not None:
            yield from self._correct_plan(self._reader.said())
        if self._unheard is not None:
            yield from Do(partial(self._lease.sync_from_headers, self._unheard, names=self._gate.names))

    def _correct_plan(self, used: Mapping[str, Any]) -> Plan[None]:
        """Adjust by the difference to what was taken, for the limits from which something was taken."""
        taken = self._lease.consumed
        more = {}
        for kind, amount in used.items():
            name = next((name for name in self._gate.names_of(kind) if name in taken), None)
            if name is not None:
                more[name] = round(amount - taken[name], 3)
        if any(more.values()):
            yield from Do(partial(self._lease.adjust, **more))

    def _quietly(self, plan: Iterable[Any]) -> Plan[None]:
        """Errors are logged only: the caller gets the vendor's response in any case."""
        try:
            yield from plan
        except Exception as error:
            self._gate.warn(error)


def which(limiter: BaseLimiter, dimensions: Dimensions) -> Which:
    """A function from a request to its dimension, made from a dimension, a function, or a mapping of these by host."""
    if isinstance(dimensions, str):
        dimension_of(limiter.engine, dimensions)
        return lambda request: dimensions
    if callable(dimensions):
        return dimensions
    if not isinstance(dimensions, Mapping) or not dimensions:
        raise ValidationError(
            "dimension must be like 'openai#gpt-4o', a function of the request that returns one, or a mapping by host, "
            f"like {{'api.openai.com': 'openai#gpt-4o'}}, not {type(dimensions).__name__}"
        )
    by_host = {_host_and_port(host): which(limiter, one) for host, one in dimensions.items()}

    def of_host(request: Any) -> str | None:
        url = urlsplit(str(request.url))
        host = _canonical(url.hostname or "")
        port = url.port or _DEFAULT_PORTS.get(url.scheme)
        found = by_host.get((host, port)) or by_host.get((host, None))
        return found(request) if found else None

    return of_host


def _host_and_port(text: str) -> tuple[str, int | None]:
    """A configured host. Without a port it stands for all ports, so that no port is a way around it."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = _canonical(parts.hostname or ""), parts.port
        if parts.netloc != text or "@" in text:
            host = ""
    except ValueError:  # an invalid port or name
        host, port = "", None
    if not host:
        raise ValidationError(f"host {text!r} is not valid: write it like 'api.openai.com' or 'localhost:8080'")
    return host, port


def _canonical(host: str) -> str:
    """`API.OpenAI.com.` is api.openai.com."""
    return host.lower().rstrip(".").encode("idna").decode("ascii")
