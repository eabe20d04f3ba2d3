"""The goals, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from . import dynamodb_scenes as dynamodb
from . import http_scenes as http
from . import operating
from . import prefetch_scenes as prefetch
from .growth import BARE as BARE_DICTIONARY
from .postgres_scenes import LEAST_ROW
from .redis_contenders import BARE, SHARED, SHARED_CALLS
from .run import Result

OURS, WITH_ACQUIRE, EVALSHA = "headgate try_acquire", "headgate with acquire", f"{BARE} EVALSHA"
REDIS_CROWDS = (
    ("redis, 64 tasks, a key each", 8, 10),
    ("redis, 64 tasks, one key", 8, 10),
    ("redis, 16 threads, a key each", 2, 0),
    ("redis, 16 threads, one key", 2, 0),
)


class Goal(NamedTuple):
    text: str
    measured: float
    wanted: float
    at_most: bool
    aim: float = 0
    unit: str = "x"

    @property
    def reached(self) -> bool:
        if self.at_most:
            return self.measured <= self.wanted
        return self.measured > self.wanted if self.wanted == 1 else self.measured >= self.wanted

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least" if self.wanted > 1 else "more than"
        aim = f", aim at {self.aim:g}{self.unit}" if self.aim else ""
        return f"{self.text}: {self.measured:.2f}{self.unit} ({bound} {self.wanted:g}{self.unit}{aim})"


def fastest_peer(times: dict[str, float]) -> tuple[str, float]:
    return _fastest_but(times, BARE, SHARED)


def goals(result: Result) -> Iterator[Goal]:
    times = {section: {row["name"]: row["best_us"] for row in rows} for section, rows in result["times"].items()}
    if "memory" in times:
        ours = times["memory"][OURS]
        name, best = fastest_peer(times["memory"])
        yield Goal(f"memory: faster than the fastest peer, {name}", best / ours, 1, False)
        ratio = times["memory"][WITH_ACQUIRE] / ours
        yield Goal("memory: time of `with acquire` against try_acquire", ratio, 1.4, True)
    if "sqlite" in times:
        ours, locked, unlocked, bare = times["sqlite"].values()
        yield Goal("sqlite: against pyrate's SQLite bucket as its README makes it", unlocked / ours, 20, False)
        text = "sqlite: against the same with its file lock, for many processes"
        yield Goal(f"{text} (a bare transaction: {locked / bare:.1f}x)", locked / ours, 20, False)
        yield Goal("sqlite: time against a bare transaction", ours / bare, 1.75, True)
    if "threads" in times:
        one, each, shared, *_, hand_over = times["threads"].values()
        bound = f"(waking them, without a store: {one / hand_over:.1f}x)"
        yield Goal(f"sqlite: 16 threads, a key each, against one thread {bound}", one / each, 2, False)
        yield Goal(f"sqlite: 16 threads, one key, against one thread {bound}", one / shared, 2, False)
    if "redis, one task" in times:
        yield from _on_redis(times, {row["name"]: row["bytes_each"] for row in result["sizes"]["redis"]})
    if "postgres, one task" in times:
        yield from _on_postgres(times)
    if dynamodb.LONE in times:
        yield from _on_dynamodb(times, result["costs"]["dynamodb"])
    if prefetch.HOT in times:
        yield from _with_prefetch(times, result["costs"]["prefetch"])
    if http.ADDED in times:
        yield from _over_http(times)
    if http.SERVICE in times:
        yield from _of_service(times[http.SERVICE], times[http.WORKERS], result["machine"]["cpus"])
    for table in (name for name in times if name.startswith("apply, ")):
        seconds = next(iter(times[table].values())) / 1e6
        yield Goal(f"{table}: 10,000 new entities", seconds, 10, True, unit=" s")
    if operating.DASHBOARD in times:
        milliseconds = times[operating.DASHBOARD]["overview"] / 1e3
        yield Goal("dashboard: the overview, of 100,000 entities", milliseconds, 100, True, unit=" ms")
    for place in operating.PLACES:
        rows = result["times"].get(operating.USAGE.format(place=place))
        if rows:
            yield Goal(f"{place}: an acquire with usage and audit against one without", rows[1]["ratio"], 1.1, True)
    for store in ("memory", "sqlite"):
        for kind, wanted in (("entities", 1.5), ("limits", 6)):
            rows = result["times"].get(f"{kind}, {store}")
            if rows:
                bound = ""
                if bare := [row["best_us"] for row in rows if row["name"].startswith(BARE_DICTIONARY)]:
                    added = (rows[-1]["best_us"] - rows[0]["best_us"]) / (bare[1] - bare[0])
                    yield Goal("memory: what many entities add to a decision, against a dictionary", added, 4, True)
                    bound = f" (a dictionary: {bare[1] / bare[0]:.1f}x)"
                yield Goal(f"{store}: {rows[-1]['name']} against 1{bound}", rows[-1]["ratio"], wanted, True)


def _on_postgres(times: dict[str, dict[str, float]]) -> Iterator[Goal]:
    for table, wanted in (("postgres, 64 tasks, a key each", 10), ("postgres, 64 tasks, one key", 20)):
        name, best = _fastest_but(times[table], "psycopg")
        yield Goal(f"{table}: against {name}", best / times[table][OURS], wanted, False)
    for table in ("postgres, one task", "postgres, one thread"):
        ratio = times[table][OURS] / times[table][LEAST_ROW]
        yield Goal(f"{table}: time against a function that reads and writes a row", ratio, 1.2, True)


def _with_prefetch(times: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> Iterator[Goal]:
    costs = {row["scene"]: row for row in rows if row["name"] == prefetch.WITH}
    hot, processes = times[prefetch.HOT], times[prefetch.PROCESSES]
    name, best = fastest_peer(hot)
    yield Goal(f"{prefetch.HOT}: against the fastest peer, {name}", best / hot[prefetch.WITH], 20, False)
    for scene in (prefetch.PACED_REDIS, prefetch.PACED_DYNAMODB):
        yield Goal(f"{scene}: calls of an acquire", costs[scene]["requests"], 1 / 25, True, unit="")
    units = costs[prefetch.PACED_DYNAMODB]["write_units"]
    yield Goal(f"{prefetch.PACED_DYNAMODB}: write units of an acquire", units, 0.05, True, unit="")
    ratio = processes[prefetch.WITHOUT] / processes[prefetch.WITH]
    yield Goal(f"{prefetch.PROCESSES}: against the same without prefetch", ratio, 5, False)


def _fastest_but(times: dict[str, float], *bare: str) -> tuple[str, float]:
    peers = {name: best for name, best in times.items() if not name.startswith(("headgate", *bare))}
    name = min(peers, key=peers.__getitem__)
    return name, peers[name]


def _on_redis(times: dict[str, dict[str, float]], sizes: dict[str, float]) -> Iterator[Goal]:
    for table, wanted, aim in REDIS_CROWDS:
        name, best = fastest_peer(times[table])
        yield Goal(f"{table}: against the fastest peer, {name}", best / times[table][OURS], wanted, False, aim)
        if SHARED_CALLS in times[table]:
            ratio = times[table][OURS] / times[table][SHARED_CALLS]
            yield Goal(f"{table}: time against shared calls that decide nothing", ratio, 3.5, True)
    for table in ("redis, one task", "redis, one thread"):
        ours = times[table][OURS]
        name, best = fastest_peer(times[table])
        yield Goal(f"{table}: time against a bare EVALSHA", ours / times[table][EVALSHA], 1.15, True)
        yield Goal(f"{table}: time against the fastest peer, {name}", ours / best, 1, True)
    ratio = sizes["headgate bucket, 1 limit"] / sizes["limits fixed window, 1 limit"]
    yield Goal("redis: bytes of an idle bucket against limits' fixed window", ratio, 1.5, True)


def _over_http(times: dict[str, dict[str, float]]) -> Iterator[Goal]:
    added = {name: best - times[http.ADDED][http.BARE] for name, best in times[http.ADDED].items()}
    for peers in ((http.SLOWAPI, http.SLOWAPI_ASGI), (http.FASTAPI_LIMITER,)):
        name = min(peers, key=added.__getitem__)
        yield Goal(
            f"http, memory: what {name} adds to a request against ours", added[name] / added[http.OURS], 1, False
        )
    for peers in ((http.SLOWAPI, http.SLOWAPI_ASGI), (http.FASTAPI_LIMITER,)):
        name = min(peers, key=times[http.SERVED].__getitem__)
        ratio = times[http.SERVED][name] / times[http.SERVED][http.OURS]
        yield Goal(f"{http.SERVED}: requests a second against {name}", ratio, 1.5, False)


def _of_service(one: dict[str, float], workers: dict[str, float], cpus: int) -> Iterator[Goal]:
    for way, constant, ours in (("HTTP", http.CONSTANT_HTTP, http.SINGLE), ("gRPC", http.CONSTANT_GRPC, http.GRPC)):
        share = 100 * one[constant] / one[ours]
        yield Goal(
            f"service: requests a second over {way}, of the same server's with a constant", share, 70, False, unit=" %"
        )
    # Against a fixed cost: a single request that gets faster must not make batches look slower.
    share = one[http.BATCHED] / one[http.CONSTANT_HTTP]
    yield Goal(f"service: a decision in batches of {http.BATCH}, against a request with a constant", share, 0.25, True)
    if cpus >= http.WORKERS_CPUS:  # with fewer, the load and the store take the place of the second worker
        ratio = workers[http.ONE_WORKER] / workers[http.TWO_WORKERS]
        yield Goal("service: decisions a second of two workers against one", ratio, 1.6, False)


def _on_dynamodb(times: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> Iterator[Goal]:
    costs = {row["scene"]: row for row in rows if row["name"] == dynamodb.OURS}
    for scene, wanted in ((dynamodb.HOT, 10), (dynamodb.SPREAD, 1.5)):
        best = times[scene]
        yield Goal(f"{scene}: against zae-limiter", best[dynamodb.PEER] / best[dynamodb.OURS], wanted, False)
    yield Goal(f"{dynamodb.HOT}: write units of an acquire", costs[dynamodb.HOT]["write_units"], 0.1, True, unit="")
    for scene, wanted in ((dynamodb.LONE, 1), (dynamodb.CASCADE, 2)):
        yield Goal(f"{scene}: requests of an acquire", costs[scene]["requests"], wanted, True, unit="")
    yield Goal(f"{dynamodb.CASCADE}: requests at once", costs[dynamodb.CASCADE]["at_once"], 2, False, unit="")
