"""What is sent to a caller: header fields (the IETF draft on rate limits, and older ones) and problem details."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ..core.errors import RateLimitExceeded, ValidationError
from ..core.limit import Limit
from ..core.status import LimitStatus
from ..core.units import MILLI
from ..limiter import Clock

HeaderKind = Literal["ratelimit", "x-ratelimit", "retry-after"]
HeaderList: TypeAlias = "list[tuple[str, str]]"
DEFAULT_HEADERS: tuple[HeaderKind, ...] = ("ratelimit", "retry-after")

_TYPES = "https://iana.org/assignments/http-problem-types#"
PROBLEM_JSON = "application/problem+json"
_KEPT = 1024
_MAX_INTEGER = 10**15 - 1  # of a structured field, RFC 9651


class HttpRefusal(NamedTuple):
    """A response that is sent instead of the application's. `refused` has the details if a limit was exceeded."""

    status: int
    headers: HeaderList
    body: bytes
    refused: RateLimitExceeded | None = None


class Headers:
    """Makes the configured header fields from the statuses of the limits."""

    def __init__(self, kinds: Iterable[HeaderKind] = DEFAULT_HEADERS) -> None:
        self._kinds = frozenset([kinds] if isinstance(kinds, str) else kinds)
        for kind in self._kinds - set(get_args(HeaderKind)):
            raise ValidationError(f"headers has {kind!r}; it may have {', '.join(map(repr, get_args(HeaderKind)))}")
        self._draft = "ratelimit" in self._kinds
        self._policies: dict[tuple[tuple[str, Limit], ...], str] = {}

    def of(self, statuses: Sequence[LimitStatus], clock: Clock) -> HeaderList:
        found: HeaderList = []
        if not statuses or not self._kinds:
            return found
        named = by_policy(statuses)
        if self._draft:
            found.append(("RateLimit-Policy", self._policy(named)))
            found.append(("RateLimit", ", ".join([_item(name, status) for name, status in named.items()])))
        if "x-ratelimit" in self._kinds:
            first = tightest(named.values())
            found += [
                ("X-RateLimit-Limit", str(int(first.limit.capacity))),
                ("X-RateLimit-Remaining", str(max(0, first.available))),
            ]
            if (reset_at_ms := _reset_at_ms(first, clock)) is not None:
                found.append(("X-RateLimit-Reset", str(-(-reset_at_ms // MILLI))))
        return found

    def of_refusal(self, refused: RateLimitExceeded, clock: Clock) -> HeaderList:
        found = self.of(refused.statuses, clock)
        retry_after = refused.retry_after_header if "retry-after" in self._kinds else None
        if retry_after is not None:
            found.append(("Retry-After", retry_after))
        return found

    def _policy(self, named: Mapping[str, LimitStatus]) -> str:
        place = tuple([(name, status.limit) for name, status in named.items()])
        policy = self._policies.get(place)
        if policy is None:
            policy = ", ".join(f'"{name}";{_quota(limit)}' for name, limit in place)
            if len(self._policies) < _KEPT:
                self._policies[place] = policy
        return policy


def by_policy(statuses: Sequence[LimitStatus]) -> dict[str, LimitStatus]:
    """One status per limit: if ancestors have it too, the tightest, without saying whose it is."""
    if len(statuses) == 1:
        return {statuses[0].limit_name: statuses[0]}
    found: dict[tuple[str, str], LimitStatus] = {}
    for status in statuses:
        place = (status.resource, status.limit_name)
        found[place] = tightest((found[place], status)) if place in found else status
    names = [name for _, name in found]
    unique = len(set(names)) == len(names)
    return {name if unique else f"{resource}:{name}": status for (resource, name), status in found.items()}


def tightest(statuses: Iterable[LimitStatus]) -> LimitStatus:
    """The one with the longest wait if any refuses, else the one with the smallest share left."""

    def room(status: LimitStatus) -> tuple[float, float]:
        wait_ms = float("inf") if status.retry_after_ms is None else status.retry_after_ms
        return (-wait_ms if status.exceeded else 0.0), status.available / status.limit.capacity

    return min(statuses, key=room)


def ms_until_reset(status: LimitStatus) -> int | None:
    """Until the request passes, if it was refused; otherwise until the limit is full. Rounded up; None if it is not
    known."""
    if status.exceeded:
        return status.retry_after_ms or 0
    limit = status.limit
    if limit.is_quota:
        return status.resets_after_ms
    missing_milli = max(0, limit.capacity_milli - status.available * MILLI)
    return -(-missing_milli * limit.period_ms // limit.refill_milli) if limit.refill_milli else 0


def _reset_at_ms(status: LimitStatus, clock: Clock) -> int | None:
    """For a quota, until its edge as seen now: some time has passed since the decision."""
    ms = ms_until_reset(status)
    if ms is None:
        return None
    at_ms, edge_ms = clock.now_ms() + ms, status.resets_at_ms
    return edge_ms if status.limit.is_quota and edge_ms is not None and 0 <= at_ms - edge_ms < MILLI else at_ms


def seconds_until_reset(status: LimitStatus) -> int | None:
    """`ms_until_reset` in whole seconds, rounded up."""
    ms = ms_until_reset(status)
    return None if ms is None else -(-ms // MILLI)


def _quota(limit: Limit) -> str:
    quota = f"q={limit.capacity_milli // MILLI}"
    if limit.is_concurrent:
        return f'{quota};qu="concurrent-requests"'
    if limit.is_quota:
        return quota + _parameter("w", ceil(limit.refill_period_seconds))
    return quota + _parameter("w", -(-limit.capacity_milli * limit.period_ms // (limit.refill_milli * MILLI)))


def _item(name: str, status: LimitStatus) -> str:
    rest = f'"{name}";r={max(0, status.available)}'
    if status.limit.is_concurrent and not status.exceeded:
        return rest
    return rest + _parameter("t", seconds_until_reset(status))


def _parameter(name: str, value: int | None) -> str:
    """Parameters are optional, and an integer with too many digits would make the whole field invalid."""
    return "" if value is None or value > _MAX_INTEGER else f";{name}={value}"


def problem(status: int, kind: str, title: str, detail: str, headers: HeaderList, **more: Any) -> HttpRefusal:
    """Problem details, RFC 9457. `kind`: a type registered with IANA, or "" if the title says it all."""
    body = {"type": _TYPES + kind if kind else "about:blank", "title": title, "status": status, "detail": detail}
    content: HeaderList = [("Content-Type", PROBLEM_JSON), ("Cache-Control", "no-store")]
    return HttpRefusal(status, content + headers, json.dumps(body | more).encode())


def too_many(refused: RateLimitExceeded, headers: HeaderList) -> HttpRefusal:
    """It names limits and numbers, but no entity: neither the caller nor its ancestors."""
    violated = [name for name, status in by_policy(refused.statuses).items() if status.exceeded]
    first = refused.primary_violation
    if first.never:
        when = f"the request needs {first.requested:,}, and {first.limit.capacity:,} is the most: ask for less"
    elif first.limit.is_concurrent:
        when = f"retry when one of the {first.limit.capacity:,} running requests has ended"
    else:
        when = f"retry in {refused.retry_after_header} s"
    detail = f"{first.limit_name} allows {first.limit.spelled}; {when}"
    more = {"violated-policies": violated, "retry_after_seconds": first.retry_after_seconds}
    return problem(429, "quota-exceeded", "Quota exceeded", detail, headers, **more)._replace(refused=refused)


def unavailable() -> HttpRefusal:
    detail = "the rate limits cannot be checked at the moment; retry later"
    return problem(503, "temporary-reduced-capacity", "Limits unavailable", detail, [("Retry-After", "1")])
