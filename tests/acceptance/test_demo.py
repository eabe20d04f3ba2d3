"""The demo, short: real processes, one of them killed, nothing oversold."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("click")

from headgate import SyncRateLimiter
from headgate.cli.demo.state import (
    ADMITTED,
    ASKING,
    COSTS,
    FIRST_MS,
    RPM,
    TPM,
    WIDTH,
    DemoState,
    LimitState,
    WorkerState,
)
from headgate.cli.workers import WorkerCounters

COMMAND = [sys.executable, "-m", "headgate.cli", "demo"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path), "HEADGATE_URL": "sqlite:////nowhere/at/all.db"}


def test_demo_as_plain_text_kills_a_worker_and_oversells_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--seconds", "3"], env=environment, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.isprintable() for line in done.stdout.splitlines())
    shown = [int(seconds) for seconds in re.findall(r"^ *(\d+) s  admitted", done.stdout, re.MULTILINE)]
    assert shown == sorted(shown)
    assert shown[-1] >= 3, "on a busy machine the workers need longer to stop"
    assert done.stdout.count("worker 2 was killed with kill -9") == 2
    *_, calls, tokens, fate, _, _ = done.stdout.splitlines()
    assert calls.startswith("rpm 3000/minute burst 100: admitted ")
    assert calls.endswith("oversold 0")
    assert tokens.endswith("oversold 0")
    assert fate.endswith("nothing was lost")
    assert list(tmp_path.iterdir()) == []


def test_demo_as_json_has_the_counts_of_workers_and_store(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = [*COMMAND, "--seconds", "3", "--workers", "2", "--json"]
    done = subprocess.run(arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["oversold"] == result["lost"] == 0
    assert RPM.capacity <= result["admitted"] <= result["limit"]
    assert result["admitted"] == result["counted_by_store"]
    assert [worker["killed"] for worker in result["workers"]] == [False, True, False]
    assert [limit["limit_name"] for limit in result["limits"]] == ["rpm", "tpm"]
    assert all(limit["admitted"] <= limit["allowed"] for limit in result["limits"])
    assert result["decisions"] == result["admitted"] + result["refused"]


def test_a_store_of_ones_own_is_left_clean(environment: dict[str, str], tmp_path: Path) -> None:
    url = "sqlite:///own.db"  # relative, for the workers too
    arguments = [*COMMAND, "--seconds", "1", "--workers", "1", "--url", url, "--namespace", "stage", "--json"]
    done = subprocess.run(arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    with SyncRateLimiter(f"sqlite:///{tmp_path / 'own.db'}", namespace="stage") as limiter:
        assert limiter.get_buckets("vendor") == []
        assert limiter.resolve_limits("vendor", "llm") == ([], None)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_early_it_sums_up_and_cleans_up(
    how: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--seconds", "60"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert "1 s  admitted" in process.stdout.readline()
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "oversold 0" in out
    assert list(tmp_path.iterdir()) == []


def test_workers_of_a_killed_demo_end(environment: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "--seconds", "60"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    (folder,) = tmp_path.iterdir()
    counters = WorkerCounters(next(folder.glob("counters")), WIDTH)
    process.kill()
    process.communicate(timeout=60)

    def counts() -> list[list[int]]:
        return [counters.slot(number).tolist() for number in range(1, 5)]

    deadline = time.monotonic() + 30
    before, now = counts(), []
    while before != now and time.monotonic() < deadline:
        time.sleep(0.5)
        before, now = now, counts()
    assert before == now


def test_the_bound_is_exact_and_overselling_shows() -> None:
    # 100 at once and 50 a second: after 1999 ms 199.95, so 199 calls.
    assert LimitState.at(RPM, 199, 1999).allowed == 199
    assert LimitState.at(RPM, 199, 1999).oversold == 0
    assert LimitState.at(RPM, 200, 1999).oversold == 1
    assert LimitState.at(RPM, 200, 2000).oversold == 0
    assert LimitState.at(TPM, 1, 0).allowed == 20_000


def test_counters_outlive_their_writer(tmp_path: Path) -> None:
    counters = WorkerCounters(tmp_path / "counters", WIDTH, 2)
    script = (
        "import os, signal, sys; from pathlib import Path; from headgate.cli.demo.state import *;"
        "from headgate.cli.workers import WorkerCounters;"
        "mine = WorkerCounters(Path(sys.argv[1]), WIDTH).slot(2); mine[FIRST_MS] = 1000; mine[ADMITTED + 1] += 7;"
        "mine[ASKING] = 300; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "counters")], timeout=60)
    assert done.returncode == -signal.SIGKILL
    slot = counters.slot(2)
    assert (slot[FIRST_MS], slot[ADMITTED + 1], slot[ASKING]) == (1000, 7, 300)
    worker = WorkerState.read(2, 1, True, slot)
    assert (worker.admitted, worker.tokens) == (7, 7 * COSTS[1])
    # The call it was killed in is added when the store says that it was allowed.
    state = DemoState.at([worker], now_ms=1000, extra_calls=1, extra_tokens=worker.asking)
    assert (state.admitted, state.limits[1].admitted) == (8, 7 * COSTS[1] + 300)
