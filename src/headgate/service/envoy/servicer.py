"""The gRPC method that Envoy calls: access, errors, and the response."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import grpc

from ...core.errors import (
    CorruptState,
    NamespaceNotFound,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreRefused,
    ValidationError,
)
from ...core.limit import Limit
from ...core.status import LimitStatus
from ...core.units import MILLI
from ...http.answer import DEFAULT_HEADERS, HeaderKind, Headers, seconds_until_reset, tightest, too_many
from ...limiter import Clock, RateLimiter
from ..problems import log_store_refused
from .decide import EnvoyDecision, decide
from .descriptors import UNITS, UNITS_MS, MatchedDescriptor, match_descriptors
from .guard import Metadata
from .ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from .rules import DescriptorRules

log = logging.getLogger("headgate")

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
SCOPE = "decide"
Authorize: TypeAlias = "Callable[[str | None, str], RateLimiter | None]"
_LARGEST = 2**32 - 1
_LONGEST_SECONDS = 315_576_000_000  # of a protobuf Duration: 10,000 years


class RateLimitServicer:
    """Answers `ShouldRateLimit` by the rules for descriptors.

    `authorize` takes the bearer token, or None, and the required scope, and returns the limiter that decides, or None
    to refuse. `headers`: which headers are added to responses.
    """

    def __init__(
        self, rules: DescriptorRules, authorize: Authorize, *, headers: Iterable[HeaderKind] = DEFAULT_HEADERS
    ) -> None:
        self._rules = rules
        self._authorize = authorize
        self._headers = Headers(headers)

    def use(self, rules: DescriptorRules) -> None:
        """Apply other rules from now on."""
        self._rules = rules

    def admits(self, metadata: Metadata) -> bool:
        """Whether a call with this metadata is allowed, whatever its message is."""
        return self._authorize(_bearer(metadata), SCOPE) is not None

    async def should_rate_limit(self, request: RateLimitRequest, context: Any) -> RateLimitResponse:
        limiter = self._authorize(_bearer(context.invocation_metadata()), SCOPE)
        if limiter is None:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, "a bearer token with the scope 'decide' is needed")
        try:
            descriptors = match_descriptors(request, self._rules)
            decision = await decide(limiter, [match for matches in descriptors for match in matches])
            return reply(descriptors, decision, self._headers, limiter.clock)
        except StoreRefused as error:
            log_store_refused(error)
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the store rejects the service; its log says why")
        except ValidationError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NamespaceNotFound as error:
            await _abort(context, grpc.StatusCode.NOT_FOUND, str(error))
        except CorruptState as error:
            log.error("%s", error)
            await _abort(context, grpc.StatusCode.DATA_LOSS, "the stored state of a descriptor is corrupt")
        except RateLimiterUnavailable as error:
            log.debug("answered UNAVAILABLE to Envoy, since the store is unavailable: %s", error)
            # An error, so that Envoy applies its failure_mode_deny.
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the store of the limits is unavailable")
        except Exception:
            log.exception("a decision for Envoy failed")
            await _abort(context, grpc.StatusCode.INTERNAL, "the decision failed; the service's log says why")

    def handler(self) -> Any:
        """The handler to add to a gRPC server."""
        method = grpc.unary_unary_rpc_method_handler(
            self.should_rate_limit,
            request_deserializer=RateLimitRequest.FromString,
            response_serializer=RateLimitResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})


def _bearer(metadata: Metadata | None) -> str | None:
    for name, value in metadata or ():
        if name == "authorization":
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else None
    return None


async def _abort(context: Any, code: grpc.StatusCode, details: str) -> NoReturn:
    await context.abort(code, details)
    raise AssertionError("abort() raises")


def reply(
    descriptors: Sequence[Sequence[MatchedDescriptor]], decision: EnvoyDecision, headers: Headers, clock: Clock
) -> RateLimitResponse:
    """The response: a status for each descriptor, the headers for the client, and the body of a refusal."""
    response = RateLimitResponse(
        overall_code=RateLimitResponse.OK if decision.allowed else RateLimitResponse.OVER_LIMIT
    )
    for matches in descriptors:
        status = response.statuses.add(code=RateLimitResponse.OK)
        statuses = decision.found[matches[-1]] if matches else ()
        if statuses:
            _fill(status, matches[-1], tightest(statuses))
    if decision.allowed:
        added = headers.of(decision.statuses, clock)
    else:
        refused = RateLimitExceeded(decision.statuses)
        _, added, response.raw_body, _ = too_many(refused, headers.of_refusal(refused, clock))
    for name, value in added:
        response.response_headers_to_add.add(key=name, value=value)
    return response


def _fill(to: RateLimitResponse.DescriptorStatus, match: MatchedDescriptor, status: LimitStatus) -> None:
    if status.exceeded and not match.never_refuses:
        to.code = RateLimitResponse.OVER_LIMIT
    amount, unit = per_unit(status.limit)
    to.current_limit.requests_per_unit = amount
    to.current_limit.unit = UNITS[unit]  # type: ignore[assignment]
    to.current_limit.name = f"{match.resource}:{status.limit_name}"
    to.limit_remaining = min(max(0, status.available), _LARGEST)
    seconds = None if status.never else seconds_until_reset(status)
    if seconds is not None:
        to.duration_until_reset.seconds = min(seconds, _LONGEST_SECONDS)


@lru_cache(1024)
def per_unit(limit: Limit) -> tuple[int, str]:
    """`5/10s` is 30 a MINUTE: the shortest unit, not shorter than the limit's own, in which it is a whole number.

    If there is none, it is rounded down in the shortest of these units.
    """
    if limit.is_quota:  # a window of another length is counted in the next longer unit
        usual_ms = limit.refill_period_seconds * MILLI
        units = [unit for unit, unit_ms in UNITS_MS.items() if unit_ms >= usual_ms] or ["YEAR"]
        named = limit.calendar.per.upper() if limit.calendar else ""  # months and years differ
        return min(limit.capacity_milli // MILLI, _LARGEST), named or units[0]
    longer = [unit for unit, unit_ms in UNITS_MS.items() if unit_ms >= limit.period_ms] or ["YEAR"]
    rates = [(divmod(limit.refill_milli * UNITS_MS[unit], limit.period_ms * MILLI), unit) for unit in longer]
    whole = (rate for rate in rates if not rate[0][1] and limit.capacity_milli >= MILLI)
    (amount, _), unit = next(whole, rates[0])
    return min(amount, _LARGEST), unit
