"""What `headgate doctor` checks: packages, the store and its clock, permissions, latency, stored limits."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from importlib import metadata
from itertools import islice

from ... import __version__
from ...core.calendar import NoCalendar, zone_of
from ...core.errors import CorruptState, HeadgateError, NamespaceNotFound, RateLimiterUnavailable
from ...core.limit import Limit
from ...core.names import shown_url
from ...core.records import Page
from ...core.units import from_milli
from ...core.usage import DAY_MS
from ...limiter import StoredLimits, SyncRateLimiter
from ...limiter.config.levels import LimitLevel
from ...limiter.config.limits import list_entity_levels, read_level
from ...stores import open_store
from ...stores.health import Finding, examine, read_clock
from ..options import remove_namespace
from ..output import all_pages, number

TIMEOUT_SECONDS = 5.0
_SAMPLES = 100
_SLOW_MS = 100
_SKEW_MS = 1000
_LOOKED_AT = 200
_CORRUPT_SHOWN = 20
PAGES_LOOKED_AT = 100  # of buckets, and of each kind of record: enough for all but very large namespaces
_MONEY = re.compile("(?i)usd|eur|gbp|dollars?|euros?|money|cost|spend|budget")
_LIMIT = Limit.per_second("calls", 1_000_000)


def store_findings(url: str) -> Iterator[Finding]:
    """Whether the store answers, its configuration, and its clock."""
    shown = str(shown_url(url))
    with closing(open_store(url, TIMEOUT_SECONDS)) as store:
        started = time.perf_counter()
        try:
            store.ping()
        except HeadgateError as error:
            away = isinstance(error, RateLimiterUnavailable)
            advice = "start it, or correct --url" if away else "correct that"
            yield Finding("store", "fail", f"{shown}: {error}", f"{advice}; nothing else was checked")
            return
        own_clock = store.own_clock
    yield Finding("store", "ok", f"{shown} answers in {_ms(time.perf_counter() - started)}, connecting included")
    try:
        yield from examine(url, TIMEOUT_SECONDS)
        yield _clock(url, own_clock)
    except HeadgateError as error:
        yield Finding("store", "warn", str(error), "it stopped answering during the checks: run them again")


def _clock(url: str, own_clock: bool) -> Finding:
    before_ms = time.time_ns() / 1_000_000
    reading = read_clock(url, TIMEOUT_SECONDS)
    after_ms = time.time_ns() / 1_000_000
    if reading is None:
        return Finding("clock", "ok", "limits use the clock of this machine")
    # The store read its clock between these two moments.
    least_ms = max(reading.earliest_ms - after_ms, before_ms - reading.latest_ms - reading.grain_ms, 0)
    most_ms = max(reading.latest_ms + reading.grain_ms - before_ms, after_ms - reading.earliest_ms)
    whose = "limits use the store's clock" if own_clock else "limits use the clocks of the clients"
    if least_ms < _SKEW_MS:
        return Finding("clock", "ok", f"{whose}; this machine's differs by at most {_ms(most_ms / 1000)}")
    why = "times shown here and there differ" if own_clock else "a client whose clock is ahead gets more than its share"
    found = f"{whose}; this machine's differs by at least {_ms(least_ms / 1000)}"
    return Finding("clock", "warn", found, f"{why}: synchronize the clocks with NTP or chrony")


def scratch_findings(limiter: SyncRateLimiter) -> Iterator[Finding]:
    """The permissions that a limiter needs, tried in a scratch namespace that is removed again."""
    steps: dict[str, Callable[[], object]] = {
        "read": limiter.get_system_defaults,
        "change limits": lambda: limiter.set_system_defaults([_LIMIT]),
        "decide": lambda: limiter.try_acquire("doctor", "doctor", {"calls": 1}, [_LIMIT]),
        "list": lambda: limiter.get_buckets("doctor"),
    }
    may = []
    for step, attempt in steps.items():
        try:
            attempt()
            may.append(step)
        except HeadgateError as error:
            advice = f"allow this user to {step}, or skip this check with --read-only"
            yield Finding("permissions", "fail", f"this user cannot {step}: {error}", advice)
    if may:
        yield Finding("permissions", "ok", f"this user can {', '.join(may)} (tried in {limiter.namespace})")
    if "decide" in may:
        yield _latency("decision", lambda: limiter.try_acquire("doctor", "doctor", {"calls": 1}, [_LIMIT]))
    yield from _clean_up(limiter)


def _clean_up(limiter: SyncRateLimiter) -> Iterator[Finding]:
    name = limiter.namespace
    try:
        with suppress(NamespaceNotFound):  # nothing could be stored
            remove_namespace(limiter)
    except HeadgateError as error:
        advice = f"remove it: headgate namespace delete {name} --yes, headgate namespace purge {name} --confirm {name}"
        yield Finding("permissions", "warn", f"this user cannot remove the namespace {name}: {error}", advice)


def ping_findings(limiter: SyncRateLimiter) -> Iterator[Finding]:
    """Instead of the scratch namespace, with --read-only."""
    yield _latency("ping", limiter.ping)


def _latency(what: str, ask: Callable[[], object]) -> Finding:
    took = []
    try:
        for _ in range(_SAMPLES):
            started = time.perf_counter()
            ask()
            took.append(time.perf_counter() - started)
    except HeadgateError as error:
        return Finding("latency", "fail", str(error), "the store stopped answering: check its load")
    took.sort()
    p50, p90, p99 = (took[len(took) * percent // 100 - 1] for percent in (50, 90, 99))
    found = f"{what}: p50 {_ms(p50)}, p90 {_ms(p90)}, p99 {_ms(p99)}, max {_ms(took[-1])} ({_SAMPLES} in sequence)"
    if p99 * 1000 < _SLOW_MS:
        return Finding("latency", "ok", found)
    return Finding(
        "latency", "warn", found, "every acquire takes that long: run closer to the store, or check its load"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"


def corrupt_findings(found: Sequence[CorruptState]) -> Iterator[Finding]:
    """Whether all stored data is valid."""
    if not found:
        yield Finding("stored data", "ok", "nothing in the namespace is corrupt")
    advice = "remove it: headgate doctor --repair"
    for error in found[:_CORRUPT_SHOWN]:
        where = (
            f"record {error.record_key}" if error.record_key else f"buckets of {error.entity_id} on {error.resource}"
        )
        yield Finding("stored data", "fail", f"{where}: {error.why}", advice)
    if len(found) > _CORRUPT_SHOWN:
        yield Finding("stored data", "fail", f"{number(len(found) - _CORRUPT_SHOWN)} more are corrupt", advice)


def namespace_findings(limiter: SyncRateLimiter) -> Iterator[Finding]:
    """Whether the namespace is active, and its limits can admit requests."""
    name = limiter.namespace
    try:
        found = limiter.get_namespace(name)
    except NamespaceNotFound:
        yield Finding("namespace", "ok", f"{name} is not registered: it has not been used yet")
        return
    if found.status != "active":
        advice = f"recover it: headgate namespace recover {name}; or choose another with --namespace"
        yield Finding("namespace", "fail", f"{name} is {found.status}: clients cannot use it", advice)
        return
    yield Finding("namespace", "ok", f"{name} is active since {found.created_at:%Y-%m-%d}")
    if orphans := limiter.list_orphans():
        some = ", ".join(orphans[:3]) + (", ..." if len(orphans) > 3 else "")
        advice = "see `headgate namespace orphans --help`"
        yield Finding("orphans", "warn", f"{len(orphans)} unregistered namespaces have data: {some}", advice)
    yield from _limits_findings(limiter)


def _limits_findings(limiter: SyncRateLimiter) -> Iterator[Finding]:
    levels = list(islice(_levels(limiter), _LOOKED_AT + 1))
    stored, unknown = list[tuple[LimitLevel, StoredLimits]](), list[Finding]()
    for level in levels[:_LOOKED_AT]:
        try:
            limits = read_level(limiter, level)
        except NoCalendar as error:  # these limits are sound, and cannot be used here
            advice = "until then, requests under these limits fail on this machine"
            unknown.append(Finding("limits", "fail", f"limits of {level} cannot be used here: {error}", advice))
            continue
        if limits:
            stored.append((level, limits))
    yield from unknown
    if not stored and not unknown:
        advice = "store one with `headgate system set rpm=100/minute`, or pass limits= to every acquire"
        yield Finding("limits", "warn", "none are stored", advice)
        return
    more = ", and more that were not checked" if len(levels) > _LOOKED_AT else ""
    alone = sum(not limits.inherit for _, limits in stored)
    inherit = f", of which {number(alone)} inherit nothing" if alone else ""
    yield Finding("limits", "ok", f"stored at {number(len(stored))} level{'s' * (len(stored) != 1)}{inherit}{more}")
    for level, limits in stored:
        for limit in limits:
            if limit.capacity < 1:
                found = f"{limit.name} of {level} is {limit}: a request for 1 never passes"
                more = "an amount" if limit.is_quota else "a burst"
                yield Finding("limits", "warn", found, f"set {more} of 1 or more, unless all amounts are fractions")
            elif _MONEY.fullmatch(limit.name) and limit.refill_milli > 0 and limit.period_ms >= DAY_MS:
                passes = number(from_milli(limit.capacity_milli + limit.refill_milli))
                found = f"{limit.name} of {level} is {limit}, a bucket: within one period up to {passes} pass"
                advice = f"for a budget, store a quota, like {limit.name}='500/month resets UTC'"
                yield Finding("limits", "warn", found, advice)


def _levels(limiter: SyncRateLimiter) -> Iterator[LimitLevel]:
    """All levels that may have limits, the most general first."""
    yield LimitLevel()
    resources = list(islice(all_pages(lambda cursor: limiter.list_resources_with_defaults(cursor=cursor)), _LOOKED_AT))
    for resource in resources:
        yield LimitLevel(resource=resource)
    yield from all_pages(partial(list_entity_levels, limiter))


def own_limits_page(limiter: SyncRateLimiter, resource: str | None, cursor: str | None) -> Page[str]:
    return limiter.list_entities_with_custom_limits(resource, cursor=cursor)


_EXTRAS = ("cli", "redis", "postgres", "dynamodb", "http", "server", "metrics", "cron")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"extra == ['\"]([a-z]+)['\"]")


def package_findings() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("headgate", "ok", f"{__version__} on Python {platform.python_version()}, {system}")
    yield _zones()
    try:
        extras = _extras()
    except metadata.PackageNotFoundError:  # not installed: run from the source
        return
    for extra in _EXTRAS:
        if extra not in extras:
            continue
        versions = {name: _version(name) for name in extras[extra]}
        found = [f"{name} {version}" for name, version in versions.items() if version]
        if len(found) == len(versions):
            yield Finding(f"extra {extra}", "ok", ", ".join(found))
        elif found:
            missing = ", ".join(name for name, version in versions.items() if not version)
            advice = f"if needed: pip install 'headgate[{extra}]'"
            yield Finding(f"extra {extra}", "ok", f"{', '.join(found)}; without {missing} ({advice})")


def _zones() -> Finding:
    try:
        zone_of("Europe/Berlin")
    except NoCalendar:
        advice = "if quotas or schedules name zones: pip install tzdata"
        return Finding("time zones", "warn", "this machine has no database of time zones, and knows only UTC", advice)
    return Finding("time zones", "ok", "this machine has a database of time zones")


def _extras() -> dict[str, list[str]]:
    """The packages of each extra, without those for certain versions of Python or systems."""
    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("headgate") or ():
        text, _, marker = requirement.partition(";")
        extra, name = _EXTRA.search(marker), _REQUIREMENT.match(text)
        if extra and name and name[1] != "headgate" and " and " not in marker:
            extras.setdefault(extra[1], []).append(name[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
