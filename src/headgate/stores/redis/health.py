"""Health of the servers: version, eviction, persistence and clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeVar

from ...core.errors import RateLimiterUnavailable
from ...plan import Plan
from ..health import ClockReading, Finding
from .blocking import RedisStore
from .router import RedisCommand, Router, raised
from .url import RedisSettings, read_url

T = TypeVar("T")

_LEAST = (6, 2)
_SECTIONS = ("server", "memory", "persistence")


def examine(url: str, timeout_seconds: float) -> list[Finding]:
    settings = read_url(url)
    servers = _run(settings, timeout_seconds, _info_plan(Router(settings)))
    if not all(servers):
        advice = "let the user run INFO, or look at the server by other means"
        return [Finding("server", "warn", "this user may not read its version and settings", advice)]
    return [finding for info in servers for finding in _findings(info)]


def read_clock(url: str, timeout_seconds: float) -> ClockReading:
    settings = read_url(url)
    times = _run(settings, timeout_seconds, _time_plan(Router(settings)))
    return ClockReading(min(times), max(times))


def _run(settings: RedisSettings, timeout_seconds: float, plan: Plan[T]) -> T:
    with closing(RedisStore(settings, timeout_seconds)) as store:
        return store._run(plan)


def _info_plan(router: Router) -> Plan[list[dict[str, str]]]:
    """INFO of each primary, by name; empty if this user may not read it."""
    slots = yield from router.primaries_plan()
    questions = [RedisCommand(("INFO", section), slot) for slot in slots for section in _SECTIONS]
    replies = yield from router.deliver_plan(questions)
    parts = [{} if isinstance(reply, RateLimiterUnavailable) else _pairs(reply) for reply in replies]
    return [
        {name: value for part in parts[start : start + len(_SECTIONS)] for name, value in part.items()}
        for start in range(0, len(parts), len(_SECTIONS))
    ]


def _time_plan(router: Router) -> Plan[list[int]]:
    slots = yield from router.primaries_plan()
    yield from router.deliver_plan(
        [RedisCommand(("PING",), slot) for slot in slots]
    )  # to connect takes time of its own
    replies = yield from router.deliver_plan([RedisCommand(("TIME",), slot) for slot in slots])
    times = []
    for reply in replies:
        if isinstance(reply, RateLimiterUnavailable):
            raise raised(reply)
        seconds, microseconds = map(int, reply)
        times.append(seconds * 1000 + microseconds // 1000)
    return times


def _pairs(reply: Any) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def _findings(info: dict[str, str]) -> Iterator[Finding]:
    yield _version(info)
    yield _eviction(info)
    yield _persistence(info)


def _version(info: dict[str, str]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    port = info.get("tcp_port", "")
    found = f"{name} {version}{f' on port {port}' if port not in ('', '0') else ''}, up {_uptime(info)}"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name == "Redis" and numbers < _LEAST:
        return Finding("server", "fail", found, "headgate needs Redis 6.2 or later, or Valkey: upgrade the server")
    return Finding("server", "ok", found)


def _uptime(info: dict[str, str]) -> str:
    seconds = int(info.get("uptime_in_seconds", 0))
    return f"{seconds // 86_400} d" if seconds >= 86_400 else f"{seconds // 3_600} h {seconds // 60 % 60} min"


def _eviction(info: dict[str, str]) -> Finding:
    policy, most = info.get("maxmemory_policy", "?"), int(info.get("maxmemory", 0))
    used = f"{info.get('used_memory_human', '?')} used"
    if most == 0:
        return Finding("memory", "ok", f"{used}, no maxmemory: it evicts nothing")
    found = f"{used} of {info.get('maxmemory_human', most)}, maxmemory-policy {policy}"
    if policy == "noeviction":
        return Finding("memory", "ok", found)
    advice = "an evicted bucket is full again: CONFIG SET maxmemory-policy noeviction, or use a server of its own"
    return Finding("memory", "warn", found, advice)


def _persistence(info: dict[str, str]) -> Finding:
    if info.get("aof_enabled") == "1":
        return Finding("persistence", "ok", "appendonly yes")
    saved = int(info.get("rdb_last_save_time", 0))
    minutes, changes = max(0, int(time.time()) - saved) // 60, info.get("rdb_changes_since_last_save", "?")
    found = f"appendonly no; last snapshot {minutes} min ago, {changes} changes since"
    advice = "what was not saved is forgotten at a restart, stored limits too: CONFIG SET appendonly yes"
    return Finding("persistence", "warn", found, advice)
