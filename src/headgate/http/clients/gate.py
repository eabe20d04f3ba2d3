"""One request of a client: it takes its turn, is sent, and what its response says is counted.

| what becomes of it | requests and the like | tokens |
|---|---|---|
| it was never sent | given back | given back |
| nobody answered, or 5xx: the vendor may have counted it | kept | kept as estimated |
| 2xx | kept | what was used, or as estimated if it does not say |
| 3xx, 4xx: the vendor did no work | kept | given back |

After a 429 the limiter lets nobody pass for as long as the vendor says, whoever shares the bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ...core.errors import RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ...core.units import wait_to_ms
from ...limiter import Decision, Dimension, Lease, OnUnavailable, RateLimiter, SyncLease, SyncRateLimiter, VendorSync
from ...limiter.acquire.chain import ONE_OF_EACH
from ...limiter.acquire.options import check_on_unavailable
from ...limiter.vendor.dimensions import dimension_of
from ...limiter.vendor.sync import NAMES
from ...plan import Plan
from .places import Places, which
from .steps import Do, Finish
from .usage import Usage, UsageReader, is_events

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("headgate")

Estimate: TypeAlias = "Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None]"
Unsent: TypeAlias = "Callable[[BaseException], bool]"

_TOKENS = ("tokens", "input_tokens", "output_tokens")
_TOO_MANY = 429
# For vendors that say "too many" without saying for how long.
_BACK_OFF_SECONDS = 1


class GateOptions(TypedDict, total=False):
    """`consume`: what a request is thought to take, or a function of the request. One of every limit, if not given.

    `usage`: a function that finds in a response's JSON what was really used, such as `token_usage`.
    `timeout`: for how many seconds a request waits for its turn. 0: not at all.
    `limits`, `names`, `on_unavailable`: as in `slot` and `sync_from_headers` of the limiter.
    """

    consume: Estimate | None
    usage: Usage | None
    timeout: float
    limits: Iterable[Limit] | None
    names: Mapping[str, str] | None
    on_unavailable: OnUnavailable | None


class Gate:
    """What all requests of a client have in common. `unsent` tells errors of requests that never left."""

    def __init__(
        self,
        limiter: SyncRateLimiter | RateLimiter,
        dimension: Places,
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
    ) -> Plan[tuple[Any, Exchange | None]]:
        """The response. Whoever reads its body feeds the exchange, if there is one, and ends it."""
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
        exchange.feed(response.content)  # it is all here already
        yield from Finish(exchange.end_plan())
        return response, None

    def _take_plan(self, request: Any, dimension: Dimension) -> Plan[Exchange]:
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
        return Exchange(self, dimension, decision.lease)

    def names_of(self, kind: str) -> tuple[str, ...]:
        """What a limit on "tokens" may be called here, the likeliest first. A limit's own name stands for itself."""
        return tuple(name for name in (self.names.get(kind), NAMES.get(kind), kind) if name is not None)

    def warn(self, error: Exception) -> None:
        """Once: what goes wrong here goes wrong at every request."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        log.log(level, "a response could not be counted, and what was taken for its request stays taken: %s", error)


class Exchange:
    """A request on its way, and its response until the end of its body."""

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
            except Exception as error:  # of the caller's own function
                self._reader = None
                self._gate.warn(error)

    def answered_plan(self, response: Any) -> Plan[None]:
        """Its status and headers are here, its body is not."""
        status: int = response.status_code
        if status < 300:
            self._reader = UsageReader.of(response.headers, self._gate.usage)
        if status < 300 and not is_events(response.headers):
            # What is left, the vendor says after this call: our own count has to be right before it is compared.
            self._unheard = response.headers
            return
        yield from self._quietly(self._heard_plan(status, response))

    def end_plan(self, error: BaseException | None = None) -> Plan[None]:
        """Its body has been read, or nobody wants it any more, or there is none. Once is enough."""
        if self._ended:
            return
        self._ended = True
        if error is not None and self._gate.unsent(error):
            yield from self._quietly(Do(self._lease.rollback))
            return
        yield from self._quietly(self._counted_plan())
        yield from self._quietly(Do(self._lease.commit))

    def given_up_plan(self, error: BaseException, close: Callable[[], Any] | None) -> Plan[None]:
        """Nobody will read a response: there is none, or who asked for it was cancelled."""
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
        """By the difference to what was taken. Of limits that nothing was taken from, nothing is known here."""
        taken = self._lease.consumed
        more = {}
        for kind, amount in used.items():
            name = next((name for name in self._gate.names_of(kind) if name in taken), None)
            if name is not None:
                more[name] = round(amount - taken[name], 3)
        if any(more.values()):
            yield from Do(partial(self._lease.adjust, **more))

    def _quietly(self, plan: Iterable[Any]) -> Plan[None]:
        """The vendor has answered, and that matters more to the caller than whatever fails here."""
        try:
            yield from plan
        except Exception as error:
            self._gate.warn(error)
