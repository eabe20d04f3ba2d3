"""The sections of the benchmark, and the result as plain data."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.local_servers.dynamodb import Ministack, NotInstalledError, aws_environment
from tests.local_servers.postgres import PostgresServer, postgres_folder

from headgate import SyncRateLimiter
from headgate.testing.servers.redis import RedisServer, redis_server_binary

from . import contenders, growth, operating, ours, redis_contenders, redis_size, size
from . import http_scenes as http
from .measure import TURN_SECONDS, WARM_UP, Contender, Timing, measure

SECTIONS = (
    "memory",
    "async",
    "sqlite",
    "threads",
    "redis",
    "postgres",
    "dynamodb",
    "prefetch",
    "http",
    "service",
    "operating",
    "limits",
    "entities",
    "size",
)
GROWTH = ("limits", "entities", "size")
PEERS = (
    "limits", "throttled-py", "pyrate-limiter", "limifyrate", "aiolimiter", "zae-limiter", "slowapi", "fastapi-limiter",
)  # fmt: skip
SERVED = ("fastapi", "uvicorn", "uvloop", "httptools", "grpcio")
PACKAGES = {"headgate": "headgate", "redis-py": "redis"} | {
    name: name for name in ("hiredis", "aiobotocore", *SERVED, *PEERS)
}
# Many callers need a while to get under way, and a connection each before the clock starts.
CROWD_TURN_SECONDS, CROWD_WARM_UP = 0.1, 256
# A hit takes milliseconds. To open a limiter takes longer, and its table grows with entities only: it is opened once.
DYNAMODB_TURN_SECONDS = 0.15
# A server is a process of its own, which takes seconds to start: it is started once.
SERVED_TURN_SECONDS = 1.0

Rows = list[dict[str, Any]]
Result = dict[str, Any]


def run(sections: Sequence[str], *, quick: bool, say: Callable[[str], None]) -> Result:
    rounds, many, buckets = (4, 100_000, 10_000) if quick else (11, 1_000_000, 100_000)
    file_rounds = 2 if quick else 4  # their turns are longer
    redis_rounds, keys = (3, 5_000) if quick else (7, 20_000)
    dynamodb_rounds = 3 if quick else 6
    for section in sections:
        check_installed(section)  # say so now, not minutes later
    times: dict[str, Rows] = {}
    sizes: dict[str, Rows] = {}
    costs: dict[str, Rows] = {}
    servers: dict[str, str] = {}
    loop = asyncio.new_event_loop()
    try:
        for section in sections:
            say(section)
            if section == "memory":
                times["memory"] = _rows(measure(contenders.memory(), rounds))
            elif section == "async":
                times["async"] = _rows(measure(contenders.asynchronous(loop), rounds))
            elif section == "sqlite":
                times["sqlite"] = _rows(measure(contenders.sqlite(), file_rounds))
            elif section == "threads":
                times["threads"] = _rows(measure(contenders.concurrent(loop), file_rounds))
            elif section == "redis":
                tables, sizes["redis"], servers["redis"] = _redis(loop, redis_rounds, keys, say)
                times |= tables
            elif section == "postgres":
                tables, sizes["postgres"], servers["postgres"] = _postgres(loop, redis_rounds, buckets, say)
                times |= tables
            elif section == "dynamodb":
                tables, costs["dynamodb"] = _dynamodb(loop, dynamodb_rounds, say)
                times |= tables
                servers["ministack"] = version("ministack")
            elif section == "prefetch":
                tables, costs["prefetch"] = _prefetch(loop, redis_rounds, file_rounds, say)
                times |= tables
            elif section == "http":
                times |= _http(loop, rounds, redis_rounds, say)
            elif section == "service":
                times |= _service(redis_rounds, say)
            elif section == "operating":
                times |= _operating(loop, rounds, redis_rounds, say)
            elif section == "limits":
                times["limits, memory"] = _rows(measure(growth.limits_per_acquire(ours.memory), rounds))
                times["limits, sqlite"] = _rows(measure(growth.limits_per_acquire(ours.sqlite), file_rounds))
            elif section == "entities":
                counts = (1, 1_000, many)
                memory, sqlite = growth.entities(ours.memory, counts), growth.entities(ours.sqlite, counts)
                times["entities, memory"] = _rows(measure(memory, rounds, fresh=False))
                times["entities, sqlite"] = _rows(measure(sqlite, file_rounds, fresh=False))
            elif section == "size":
                sizes["memory"] = [asdict(row) for row in size.in_memory(buckets)]
                sizes["disk"] = [asdict(row) for row in size.on_disk(buckets)]
    finally:
        loop.close()
    result: Result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "quick": quick,
        "rounds": {"memory": rounds, "sqlite": file_rounds, "redis": redis_rounds, "dynamodb": dynamodb_rounds},
        "machine": machine() | servers,
        "versions": _versions(),
        "times": times,
        "sizes": sizes,
        "costs": costs,
    }
    return result


def check_installed(section: str) -> None:
    """Whether what a section needs is on this machine, or NotInstalledError."""
    if section in ("redis", "prefetch", "http", "service", "operating"):
        redis_server_binary()
    elif section == "postgres":
        postgres_folder()
    if section in ("dynamodb", "prefetch"):
        Ministack.find()
    if section == "dynamodb" and find_spec("zae_limiter") is None:
        raise NotInstalledError("zae-limiter is not installed: it needs Python 3.11")


def _versions() -> dict[str, str]:
    found = {}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:  # then its section was left out
            pass
    return found


def _redis(
    loop: asyncio.AbstractEventLoop, rounds: int, keys: int, say: Callable[[str], None]
) -> tuple[dict[str, Rows], Rows, str]:
    """All of it on one server: the tables of times, the sizes, the server's version."""
    times = {}
    with RedisServer() as server:
        for table, group in redis_contenders.lone(server.url, loop).items():
            say(table)
            times[table] = _rows(measure(group, 2 * rounds))
        for table, group in redis_contenders.crowds(server.url, loop).items():
            say(table)
            times[table] = _rows(measure(group, rounds, turn_seconds=CROWD_TURN_SECONDS, warm_up=CROWD_WARM_UP))
        say("redis, size")
        sizes = [asdict(row) for row in redis_size.on_redis(server.url, loop, keys)]
        return times, sizes, server.info("server")["redis_version"]


def _postgres(
    loop: asyncio.AbstractEventLoop, rounds: int, buckets: int, say: Callable[[str], None]
) -> tuple[dict[str, Rows], Rows, str]:
    """All of it on one server, which waits for the disk: the tables of times, the sizes, the server's version."""
    from . import postgres_contenders, postgres_size

    times = {}
    with PostgresServer(fsync=True) as server:
        with SyncRateLimiter(server.url) as limiter:
            limiter.setup()
        for table, group in postgres_contenders.lone(server.url, loop).items():
            say(table)
            times[table] = _rows(measure(group, rounds))
        for table, group in postgres_contenders.crowds(server.url, loop).items():
            say(table)
            times[table] = _rows(measure(group, rounds, turn_seconds=CROWD_TURN_SECONDS, warm_up=CROWD_WARM_UP))
        say("postgres, size")
        sizes = postgres_size.rows(server.url, 10 * buckets)
        return times, sizes, server.execute("SHOW server_version")[0][0]


def _dynamodb(loop: asyncio.AbstractEventLoop, rounds: int, say: Callable[[str], None]) -> tuple[dict[str, Rows], Rows]:
    """All of it on one engine: the tables of times, and what an acquire costs."""
    from . import dynamodb_contenders, dynamodb_cost

    times = {}
    with aws_environment(), Ministack() as engine:
        lone, crowds = (make(engine, loop) for make in (dynamodb_contenders.lone, dynamodb_contenders.crowds))
        for table, group in {**lone, **crowds}.items():
            say(table)
            warm_up = CROWD_WARM_UP if table in crowds else WARM_UP
            timings = measure(group, rounds, fresh=False, turn_seconds=DYNAMODB_TURN_SECONDS, warm_up=warm_up)
            times[table] = _rows(timings)
        return times, [asdict(cost) for cost in dynamodb_cost.on_dynamodb(engine, loop, say)]


def _prefetch(
    loop: asyncio.AbstractEventLoop, rounds: int, file_rounds: int, say: Callable[[str], None]
) -> tuple[dict[str, Rows], Rows]:
    from . import prefetch_contenders, prefetch_cost
    from . import prefetch_scenes as prefetch

    times = {}
    with RedisServer() as server:
        for table, group in prefetch_contenders.on_redis(server.url, loop).items():
            say(table)
            times[table] = _rows(measure(group, rounds, turn_seconds=CROWD_TURN_SECONDS, warm_up=CROWD_WARM_UP))
        say(prefetch.PACED_REDIS)
        costs = prefetch_cost.on_redis(server.url, loop)
    say(prefetch.PROCESSES)
    # A process takes a while to start: it is started once.
    processes = measure(prefetch_contenders.in_processes(), file_rounds, fresh=False, turn_seconds=SERVED_TURN_SECONDS)
    times[prefetch.PROCESSES] = _rows(processes)
    say(prefetch.PACED_DYNAMODB)
    with aws_environment(), Ministack() as engine:
        costs += prefetch_cost.on_dynamodb(engine, loop)
    return times, [asdict(cost) for cost in costs]


def _http(
    loop: asyncio.AbstractEventLoop, rounds: int, served_rounds: int, say: Callable[[str], None]
) -> dict[str, Rows]:
    from . import http_contenders

    say(http.ADDED)
    times = {http.ADDED: _rows(measure(http_contenders.direct(loop), rounds))}
    say(http.SERVED)
    with RedisServer() as server:
        times[http.SERVED] = _rows(_at_servers(http_contenders.served(loop, server.url), served_rounds))
    return times


def _service(rounds: int, say: Callable[[str], None]) -> dict[str, Rows]:
    from . import service_contenders

    say(http.SERVICE)
    times = {http.SERVICE: _rows(_at_servers(service_contenders.service(), rounds))}
    say(http.WORKERS)
    with RedisServer() as server:
        times[http.WORKERS] = _rows(_at_servers(service_contenders.workers(server.url), rounds))
    return times


def _operating(
    loop: asyncio.AbstractEventLoop, rounds: int, redis_rounds: int, say: Callable[[str], None]
) -> dict[str, Rows]:
    from . import apply, dashboard

    times = {}

    with RedisServer() as server:
        for place in apply.PLACES:
            table = apply.APPLY.format(place=place)
            say(table)
            times[table] = _rows(measure(apply.contenders(place, server.url), 2, warm_up=0))
        say(operating.DASHBOARD)
        with TemporaryDirectory() as folder:
            pages = dashboard.pages(loop, dashboard.filled(Path(folder)))
            times[operating.DASHBOARD] = _rows(measure(pages, redis_rounds, fresh=False))
        for place in operating.PLACES:
            table = operating.USAGE.format(place=place)
            say(table)
            crowd = "tasks" in place
            times[table] = _rows(
                measure(
                    operating.usage(place, server.url, loop),
                    2 * redis_rounds if "redis" in place else rounds,
                    turn_seconds=CROWD_TURN_SECONDS if crowd else TURN_SECONDS,
                    warm_up=CROWD_WARM_UP if crowd else WARM_UP,
                )
            )
    return times


def _at_servers(group: Sequence[Contender], rounds: int) -> list[Timing]:
    return measure(group, rounds, fresh=False, turn_seconds=SERVED_TURN_SECONDS, warm_up=CROWD_WARM_UP)


def _rows(timings: Sequence[Timing]) -> Rows:
    first = timings[0].best_us
    return [
        {
            "name": timing.name,
            "note": timing.note,
            "best_us": round(timing.best_us, 3),
            "median_us": round(timing.median_us, 3),
            "per_second": round(1e6 / timing.best_us),
            "ratio": round(timing.best_us / first, 3),
            "hits_per_turn": timing.hits,
        }
        for timing in timings
    ]


def machine() -> dict[str, Any]:
    """What the numbers depend on; nothing that names the machine or its user."""
    return {
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }
