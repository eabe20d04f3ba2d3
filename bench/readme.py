"""The few numbers that stand in the README."""

from __future__ import annotations

from typing import Any

from . import dynamodb_scenes as dynamodb
from . import http_scenes as http
from .must import EVALSHA, OURS, fastest_peer
from .run import Result

MEMORY = (
    ("headgate", "headgate try_acquire"),
    ("limits, fixed window", "limits fixed window"),
    ("throttled-py, GCRA", "throttled GCRA"),
    ("throttled-py, token bucket", "throttled token bucket"),
    ("pyrate-limiter", "pyrate in-memory bucket"),
)
ON_REDIS = (
    ("limits, its fastest", "limits"),
    ("throttled-py, its fastest", "throttled"),
    ("pyrate-limiter, its fastest", "pyrate"),
    ("limify", "limify"),
)

PAIR = {dynamodb.OURS: "headgate", dynamodb.PEER: "zae-limiter"}


def summary(result: Result) -> str:
    best = {section: {row["name"]: row["best_us"] for row in rows} for section, rows in result["times"].items()}
    memory, sqlite, together = best["memory"], best["sqlite"], best["threads"]
    in_memory = [(name, memory[key]) for name, key in MEMORY]
    in_a_file = [
        ("headgate", sqlite["headgate try_acquire"]),
        ("headgate, 64 tasks at once", together["headgate 64 tasks, a key each"]),
        ("pyrate-limiter, file lock", sqlite["pyrate SQLite, file lock"]),
        ("pyrate-limiter, as in its README", sqlite["pyrate SQLite, no lock"]),
    ]
    parts = [
        f"From one run of `make bench` on a machine with {result['machine']['cpus']} cores ({result['date']}, "
        f"{result['machine']['python']}); ratios travel better than times.",
        _table("in memory, one limit", in_memory),
        _table("in an SQLite file, one limit", in_a_file),
    ]
    if "redis" in result["sizes"]:
        parts += _on_redis(best, {row["name"]: row["bytes_each"] for row in result["sizes"]["redis"]})
    if result.get("costs"):
        parts += _on_dynamodb(best, result["costs"]["dynamodb"])
    if http.ADDED in best:
        parts += _over_http(best)
    parts.append(
        f"A million entities: {_growth(best['entities, memory']):.2f}x the time of one in memory, "
        f"{_growth(best['entities, sqlite']):.2f}x in a file. Sixteen limits in one acquire: "
        f"{_growth(best['limits, memory']):.1f}x one limit.\n"
        "For one event loop, no keys and no refusals, aiolimiter is the faster choice: it does one thing in "
        f"{best['async']['aiolimiter']:.1f} µs."
    )
    return "\n\n".join(parts) + "\n"


def _over_http(best: dict[str, dict[str, float]]) -> list[str]:
    added = {name: time - best[http.ADDED][http.BARE] for name, time in best[http.ADDED].items()}
    served, service = best[http.SERVED], best.get(http.SERVICE, {})
    names = ((http.OURS, "headgate"), (http.SLOWAPI, "slowapi"), (http.FASTAPI_LIMITER, "fastapi-limiter"))
    parts = [
        _table("added to a request of a FastAPI application, in memory", [(name, added[key]) for key, name in names]),
        f"The same application with its limits in Redis, {http.CONNECTIONS} connections: "
        + ", ".join(f"{1e6 / served[key]:,.0f} requests a second with {name}" for key, name in names)
        + f"; {1e6 / served[http.BARE]:,.0f} without a limiter.",
    ]
    if service:
        single, batched, grpc = (1e6 / service[name] for name in (http.SINGLE, http.BATCHED, http.GRPC))
        parts.append(
            f"`headgate serve` makes {single:,.0f} decisions a second over HTTP, {batched:,.0f} in batches of "
            f"{http.BATCH}, {grpc:,.0f} over gRPC."
        )
    return parts


def _on_redis(best: dict[str, dict[str, float]], sizes: dict[str, float]) -> list[str]:
    spread, hot, threads = (
        best[f"redis, {callers}"] for callers in ("64 tasks, a key each", "64 tasks, one key", "16 threads, a key each")
    )
    task, thread = (best[f"redis, {caller}"] for caller in ("one task", "one thread"))
    rows = [("headgate", spread[OURS])]
    for name, start in ON_REDIS:
        rows.append((name, min(us for row, us in spread.items() if row.startswith(start))))
    return [
        _table("on one Redis server, 64 tasks, a key each", rows),
        f"On one hot key the 64 tasks are {_ahead(hot):.1f}x as fast as with the fastest of the others; 16 threads are "
        f"{_ahead(threads):.1f}x as fast.\n"
        f"A lone task takes {task[OURS] / task[EVALSHA]:.2f}x the time of a bare `EVALSHA`, a lone thread "
        f"{thread[OURS] / thread[EVALSHA]:.2f}x.\n"
        f"An idle bucket takes {sizes['headgate bucket, 1 limit']:.0f} bytes of Redis, a counter of limits "
        f"{sizes['limits fixed window, 1 limit']:.0f}.",
    ]


def _on_dynamodb(best: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> list[str]:
    units = {name: {row["scene"]: row["write_units"] for row in rows if row["name"] == name} for name in PAIR}
    ours, theirs = units[dynamodb.OURS], units[dynamodb.PEER]
    hot, spread, lone = (best[scene] for scene in (dynamodb.HOT, dynamodb.SPREAD, dynamodb.LONE))
    return [
        _table("on one DynamoDB engine, 64 tasks, one entity", [(label, hot[name]) for name, label in PAIR.items()]),
        f"There an acquire is {ours[dynamodb.HOT]:.2f} write units, with zae-limiter {theirs[dynamodb.HOT]:g}.\n"
        f"With an entity for each of the 64 tasks headgate is {_times(spread):.1f}x as fast, and an acquire is "
        f"{ours[dynamodb.SPREAD]:.2f} write units instead of {theirs[dynamodb.SPREAD]:g}; a lone task is "
        f"{_times(lone):.2f}x as fast.",
    ]


def _times(scene: dict[str, float]) -> float:
    return scene[dynamodb.PEER] / scene[dynamodb.OURS]


def _ahead(times: dict[str, float]) -> float:
    return fastest_peer(times)[1] / times[OURS]


def _table(title: str, rows: list[tuple[str, float]]) -> str:
    first = rows[0][1]
    lines = [f"| {name} | {us:,.{1 if us < 20 else 0}f} | {us / first:.2f}x |" for name, us in rows]
    return "\n".join([f"| {title} | µs | ratio |", "|---|---:|---:|", *lines])


def _growth(times: dict[str, float]) -> float:
    *_, last = times.values()
    return last / next(iter(times.values()))
