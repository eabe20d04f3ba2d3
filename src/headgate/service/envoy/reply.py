"""The answer, as Envoy expects it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from ...core.status import LimitStatus
from ...core.units import MILLI
from ...http.answer import Headers, seconds_until_reset, tightest, too_many
from ...limiter import Clock
from .decide import Verdict
from .ratelimit_pb2 import RateLimitResponse
from .wishes import UNITS, UNITS_MS, Wish

_LARGEST = 2**32 - 1
_LONGEST_SECONDS = 315_576_000_000  # of a protobuf Duration: 10,000 years


def reply(descriptors: Sequence[Sequence[Wish]], verdict: Verdict, headers: Headers, clock: Clock) -> RateLimitResponse:
    """A status for each descriptor, the headers for the client, and the body if it is refused."""
    response = RateLimitResponse(overall_code=RateLimitResponse.OK if verdict.allowed else RateLimitResponse.OVER_LIMIT)
    for wishes in descriptors:
        status = response.statuses.add(code=RateLimitResponse.OK)
        statuses = verdict.found[wishes[-1]] if wishes else ()
        if statuses:
            _fill(status, wishes[-1], tightest(statuses))
    if verdict.allowed:
        added = headers.of(verdict.statuses, clock)
    else:
        refused = RateLimitExceeded(verdict.statuses)
        _, added, response.raw_body, _ = too_many(refused, headers.of_refusal(refused, clock))
    for name, value in added:
        response.response_headers_to_add.add(key=name, value=value)
    return response


def _fill(to: RateLimitResponse.DescriptorStatus, wish: Wish, status: LimitStatus) -> None:
    if status.exceeded and not wish.never_refuses:
        to.code = RateLimitResponse.OVER_LIMIT
    amount, unit = per_unit(status.limit)
    to.current_limit.requests_per_unit = amount
    to.current_limit.unit = UNITS[unit]  # type: ignore[assignment]
    to.current_limit.name = f"{wish.resource}:{status.limit_name}"
    to.limit_remaining = min(max(0, status.available), _LARGEST)
    if not status.never:
        to.duration_until_reset.seconds = min(seconds_until_reset(status), _LONGEST_SECONDS)


@lru_cache(1024)
def per_unit(limit: Limit) -> tuple[int, str]:
    """`5/10s` is 30 a MINUTE: the shortest unit, not shorter than the limit's own, in which it is a whole number.

    Where there is none it is rounded down, in the first of these units.
    """
    longer = [unit for unit, unit_ms in UNITS_MS.items() if unit_ms >= limit.period_ms] or ["YEAR"]
    rates = [(divmod(limit.refill_milli * UNITS_MS[unit], limit.period_ms * MILLI), unit) for unit in longer]
    whole = (rate for rate in rates if not rate[0][1] and limit.capacity_milli >= MILLI)
    (amount, _), unit = next(whole, rates[0])
    return min(amount, _LARGEST), unit
