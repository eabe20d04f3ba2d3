"""`headgate loadtest`: real processes, what they counted, and a limit that was oversold on purpose."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("click")

from cli_helpers import COMMAND, Cli
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit
from headgate.cli.loadtest.histogram import SIZE, most, percentile, place
from headgate.cli.loadtest.load import RESOURCE, Load
from headgate.cli.loadtest.result import Sale
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisServer


def _left(cli: Cli) -> list[str]:
    with cli.limiter() as limiter:
        return [one.name for one in limiter.list_namespaces()] + limiter.list_orphans()


def _command_lines(parent: int) -> list[str]:
    """Of the processes that one has started, where the system tells."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    pids = children.read_text().split() if children.exists() else []
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]


def test_everything_is_counted_and_nothing_is_left(inside: Cli) -> None:
    sizes = ("--workers", "2", "--tasks", "3", "--entities", "2", "--count", "301")
    limits = ("--limit", "calls=100/day", "--limit", "tpm=300/day", "--consume", "tpm=2.5")
    found = inside.json("loadtest", *sizes, *limits)
    assert (found["decisions"], found["admitted"], found["refused"], found["unavailable"]) == (301, 200, 101, 0)
    calls, tpm = found["limits"]
    assert (calls["admitted"], calls["oversold"], tpm["admitted"], tpm["oversold"]) == (200, 0, 500, 0)
    assert 200 <= calls["allowed"] < 201
    assert f"100 + {round(found['seconds'] * 1000):,} ms * 100 / 86,400,000 ms = 100" in calls["computed"]
    assert found["clock"] == "machine"
    latency = found["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert _left(inside) == []
    with inside.limiter() as limiter:
        assert limiter.get_namespace_events() == []


def test_by_the_clock_of_the_store_if_it_has_one(inside: Cli, redis_server: RedisServer) -> None:
    size = ("--workers", "1", "--count", "50", "--limit", "calls=20/day")
    found = inside.json("loadtest", *size, "--url", redis_server.url)
    assert (found["clock"], found["admitted"], found["oversold"]) == ("store", 20, False)


def test_a_bar_on_a_terminal_and_a_report_when_interrupted(cli: Cli) -> None:
    with cli.terminal("loadtest", "--workers", "1", "--seconds", "60") as terminal:
        terminal.see("1 x 8 on sqlite")
        terminal.see("of 60 s")
        terminal.see("/s")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "Nothing was oversold." in terminal.seen
        assert "by this machine's clock" in terminal.seen
    assert _left(cli) == []


def test_an_oversold_limit_is_found(cli: Cli) -> None:
    """Somebody fills the bucket in the middle of the test, so that twice as much is admitted as the limit allows."""
    arguments = ["loadtest", "--workers", "1", "--seconds", "60", "--limit", "calls=50/day", "--json"]
    with subprocess.Popen([*COMMAND, *arguments], env=cli.environment, stdout=subprocess.PIPE, text=True) as process:
        with cli.limiter() as looking:
            eventually(lambda: bool(looking.list_namespaces()), "the test has a namespace")
            (namespace,) = looking.list_namespaces()
        with cli.limiter(namespace=namespace.name) as limiter:

            def used_up() -> bool:
                return [bucket.available for bucket in limiter.get_buckets("entity-0")] == [0]

            eventually(used_up, "all of the limit is used")
            assert all("store.db" not in line for line in _command_lines(process.pid)), "a URL may hold a password"
            limiter.reset("entity-0", RESOURCE)
            eventually(used_up, "all of it is used again")
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        assert process.wait(60) == 1
    assert found["oversold"] is True
    assert found["limits"][0]["oversold"] == pytest.approx(50, abs=0.1)
    assert _left(cli) == []


@given(st.integers(0, 2**33))
def test_a_latency_is_counted_as_what_it_is_or_a_64th_more(microseconds: int) -> None:
    index = place(microseconds)
    assert 0 <= index < SIZE
    if microseconds < 2**32:
        assert microseconds <= most(index) <= microseconds + microseconds / 64


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50), st.sampled_from([50, 90, 99]))
def test_percentiles_are_those_of_the_sorted_list(latencies: list[int], percent: int) -> None:
    counts = [0] * SIZE
    for one in latencies:
        counts[place(one)] += 1
    exact = sorted(latencies)[-(-len(latencies) * percent // 100) - 1]
    assert exact <= percentile(counts, percent) <= exact + exact / 64


@given(st.integers(1, 50), st.integers(1, 500))
def test_the_workers_share_the_decisions(workers: int, count: int) -> None:
    load = Load("sqlite:///x.db", "n", workers, 1, 1, {"calls": "1", "usd": "0.5"}, count)
    told = Load.from_json(load.as_json())
    assert told == load
    assert sum(len(list(told.turns(number))) for number in range(1, workers + 1)) == count


@given(
    st.lists(st.integers(0, 2000), min_size=1, max_size=5),
    st.integers(1, 5000),
    st.integers(0, 10**6),
)
def test_oversold_is_what_each_entity_got_beyond_the_most(calls: list[int], amount: int, elapsed_ms: int) -> None:
    limit = Limit.custom("calls", 1000, 7, 3)
    sale = Sale.of(limit, amount, calls, 10**12, 10**12 + elapsed_ms)
    most_milli = 1_000_000 + elapsed_ms * 7_000 // 3_000
    assert sale.admitted_milli == sum(calls) * amount
    assert sale.oversold_milli == sum(max(0, count * amount - most_milli) for count in calls)


@pytest.mark.parametrize(
    ("spec", "elapsed_ms", "windows"),
    [
        ("10/day resets Europe/Berlin", 0, 1),
        ("10/day resets Europe/Berlin", 11 * 3_600_000 - 1, 1),
        ("10/day resets Europe/Berlin", 11 * 3_600_000, 2),
        ("10/day resets Europe/Berlin", 35 * 3_600_000, 3),
        ("10/cron 0 * * * * resets UTC", 3 * 3_600_000, 4),
        ("10/5s from first use", 4_999, 1),
        ("10/5s from first use", 5_000, 2),
        ("10/5s from first use", 15_000, 4),
    ],
)
def test_a_quota_allows_its_amount_in_each_window(spec: str, elapsed_ms: int, windows: int) -> None:
    noon = 1_793_534_400_000  # of UTC, eleven hours before midnight in Berlin
    sale = Sale.of(Limit.parse("n", spec), 1000, [10 * windows, 10 * windows + 1], noon, noon + elapsed_ms)
    assert (sale.windows, sale.allowed_milli, sale.oversold_milli) == (windows, 20_000 * windows, 1000)


def test_a_load_test_of_quotas(cli: Cli) -> None:
    quotas = ["--limit", "day=50/day resets Europe/Berlin", "--limit", "first=20/100s from first use"]
    found = cli.json("loadtest", "--count", "400", "--workers", "2", "--tasks", "2", *quotas, "--consume", "day=2")
    day, first = found["limits"]
    assert (first["admitted"], first["oversold"], day["admitted"], day["oversold"]) == (20, 0, 40, 0)
    assert first["computed"].startswith("20 * ")
