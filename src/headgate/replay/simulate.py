"""The replay of a log: the real limiter, with limits from a file, a store in memory, and the clock of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ..core.errors import ValidationError
from ..core.limit import Limit
from ..core.schedule import Schedule
from ..declare import Declaration, DeclaredLimits, apply, diff
from ..declare.declaration import Limits, inherits, scheduled
from ..limiter import Decision, SyncLease, SyncRateLimiter
from .log import BadLines, LoggedRequest, RequestLogFile, merged
from .report import EntityReport, Report, Timeline

_FOREVER_SECONDS = 1e10  # limits do not change during a replay
_KEPT_NAMES = 100_000
_PROGRESS_EVERY = 10_000


class _LogClock:
    """The time of the current request."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms


class _Tally:
    """The decisions for an entity."""

    __slots__ = ("because_of", "first_ms", "never", "newly_allowed", "newly_refused", "refused", "requests", "wait_ms")

    def __init__(self) -> None:
        self.requests = self.refused = self.newly_refused = self.newly_allowed = self.wait_ms = self.first_ms = 0
        self.never = False
        self.because_of: dict[str, int] | None = None  # most are never refused

    def refuse(self, entity_id: str, decision: Decision[SyncLease], at_ms: int) -> None:
        if not self.refused:
            self.first_ms, self.because_of = at_ms, {}
        self.refused += 1
        wait_ms = decision.retry_after_ms
        if wait_ms is None:
            self.never = True
        elif wait_ms > self.wait_ms:
            self.wait_ms = wait_ms
        assert self.because_of is not None
        for status in decision.statuses:
            if status.exceeded:
                whose = "" if status.entity_id == entity_id else f" of {status.entity_id}"
                name = f"{status.limit_name}{whose}"
                self.because_of[name] = self.because_of.get(name, 0) + 1

    def report(self, entity_id: str) -> EntityReport:
        return EntityReport(
            entity_id,
            self.requests,
            self.refused,
            self.newly_refused,
            self.newly_allowed,
            datetime.fromtimestamp(self.first_ms / 1000, timezone.utc) if self.refused else None,
            self.wait_ms / 1000,
            self.never,
            dict(sorted((self.because_of or {}).items(), key=lambda item: (-item[1], item[0]))),
        )


class _Simulation:
    def __init__(self, limiter: SyncRateLimiter, clock: _LogClock, bad: BadLines) -> None:
        self.bad = bad
        self.tallies: dict[str, _Tally] = {}
        self.timeline = Timeline()
        self.requests = self.unlimited = 0
        self._limiter = limiter
        self._clock = clock
        self._names: dict[tuple[str, str], frozenset[str]] = {}

    def play(self, request: LoggedRequest) -> None:
        at_ms, entity_id, resource, consume, was_allowed, *_ = request
        self._clock.ms = at_ms
        try:
            decision = self._decide(entity_id, resource, consume)
        except ValidationError as error:
            self.bad.add(request.place, error)
            return
        self.requests += 1
        tally = self.tallies.get(entity_id)
        if tally is None:
            tally = self.tallies[entity_id] = _Tally()
        tally.requests += 1
        refused = decision is not None and not decision.allowed
        if decision is not None and refused:
            tally.refuse(entity_id, decision, at_ms)
            tally.newly_refused += was_allowed is True
        elif was_allowed is False:
            tally.newly_allowed += 1
        self.timeline.add(at_ms, refused)

    def _decide(self, entity_id: str, resource: str, consume: Mapping[str, Any]) -> Decision[SyncLease] | None:
        """None: it consumes nothing with a limit."""
        names = self._names.get((entity_id, resource))
        if names is None:
            names = self._limited(entity_id, resource)
        if not names.issuperset(consume):
            consume = {name: amount for name, amount in consume.items() if name in names}
            if not consume:
                self.unlimited += 1
                return None
        return self._limiter.try_acquire(entity_id, resource, consume)

    def _limited(self, entity_id: str, resource: str) -> frozenset[str]:
        """The names of the limits, without slots: a log does not say how long they were held."""
        limits, _ = self._limiter.resolve_limits(entity_id, resource)
        names = frozenset(limit.name for limit in limits if not limit.is_concurrent)
        if len(self._names) >= _KEPT_NAMES:
            self._names.clear()
        self._names[entity_id, resource] = names
        return names


def replay(
    declaration: Declaration,
    *logs: str | Iterable[LoggedRequest],
    skip_bad: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Report:
    """Replay logs under the declared limits. A log is a file, or requests ordered by time. LogError if a line is
    invalid, unless `skip_bad`.

    `progress` is called from time to time with the number of replayed requests.
    """
    began = time.perf_counter()
    clock, bad = _LogClock(), BadLines(skip=skip_bad)
    opened = [RequestLogFile(log, bad) if isinstance(log, str) else log for log in logs]
    with SyncRateLimiter(
        "memory://",
        namespace=declaration.namespace or "default",
        clock=clock,
        config_cache_ttl=_FOREVER_SECONDS,
        usage_days=0,
        audit_days=0,
    ) as limiter:
        apply(limiter, diff(limiter, _without_alerts(declaration)))
        simulation = _Simulation(limiter, clock, bad)
        for request in opened[0] if len(opened) == 1 else merged(opened):
            simulation.play(request)
            if progress is not None and simulation.requests % _PROGRESS_EVERY == 0:
                progress(simulation.requests)
    samples = [log.sample for log in opened if isinstance(log, RequestLogFile)]
    return _report(simulation, min(samples, default=1.0), time.perf_counter() - began)


def _without_alerts(declaration: Declaration) -> Declaration:
    """A replay sends no alerts."""
    return replace(
        declaration,
        system=None if declaration.system is None else _silent_level(declaration.system),
        resources={name: _silent_level(limits) for name, limits in declaration.resources.items()},
        entities={
            entity_id: replace(entity, limits={on: _silent_level(limits) for on, limits in entity.limits.items()})
            for entity_id, entity in declaration.entities.items()
        },
    )


def _silent_level(limits: Limits) -> Limits:
    schedule = scheduled(limits)
    if schedule is not None:
        entries = [(hours, what if isinstance(what, float) else _silent(what)) for hours, what in schedule.entries]
        schedule = Schedule(entries, otherwise=_silent(schedule.otherwise), tz=schedule.tz)
    named = {limit.name: limit for limit in _silent(limits.values())}
    return DeclaredLimits(named, inherit=inherits(limits), schedule=schedule)


def _silent(limits: Iterable[Limit]) -> list[Limit]:
    return [limit.changed(alerts_milli=()) for limit in limits]


def _report(simulation: _Simulation, sample: float, seconds: float) -> Report:
    entities = [tally.report(entity_id) for entity_id, tally in simulation.tallies.items()]
    entities.sort(key=lambda entity: (-entity.refused, -entity.requests, entity.entity_id))
    return Report(
        requests=simulation.requests,
        refused=sum(entity.refused for entity in entities),
        newly_refused=sum(entity.newly_refused for entity in entities),
        newly_allowed=sum(entity.newly_allowed for entity in entities),
        unlimited=simulation.unlimited,
        bad=simulation.bad.count,
        first_bad=simulation.bad.first or None,
        sample=sample,
        seconds=seconds,
        entities=entities,
        moments=simulation.timeline.moments(),
        step_seconds=simulation.timeline.step_seconds,
    )
