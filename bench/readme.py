"""The few numbers that stand in the README."""

from __future__ import annotations

from .run import Result

MEMORY = (
    ("headgate", "headgate try_acquire"),
    ("limits, fixed window", "limits fixed window"),
    ("throttled-py, GCRA", "throttled GCRA"),
    ("throttled-py, token bucket", "throttled token bucket"),
    ("pyrate-limiter", "pyrate in-memory bucket"),
)


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
    return f"""\
From one run of `make bench` on a machine with {result["machine"]["cpus"]} cores ({result["date"]}, \
{result["machine"]["python"]}); ratios travel better than times.

{_table("in memory, one limit", in_memory)}

{_table("in an SQLite file, one limit", in_a_file)}

A million entities: {_growth(best["entities, memory"]):.2f}x the time of one in memory, \
{_growth(best["entities, sqlite"]):.2f}x in a file. Sixteen limits in one acquire: \
{_growth(best["limits, memory"]):.1f}x one limit.
For one event loop, no keys and no refusals, aiolimiter is the faster choice: it does one thing in \
{best["async"]["aiolimiter"]:.1f} µs.
"""


def _table(title: str, rows: list[tuple[str, float]]) -> str:
    first = rows[0][1]
    lines = [f"| {name} | {us:,.{1 if us < 20 else 0}f} | {us / first:.2f}x |" for name, us in rows]
    return "\n".join([f"| {title} | µs | ratio |", "|---|---:|---:|", *lines])


def _growth(times: dict[str, float]) -> float:
    *_, last = times.values()
    return last / next(iter(times.values()))
