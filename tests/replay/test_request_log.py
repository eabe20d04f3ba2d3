"""The limiter can record what is asked of it: whole entities, without keeping anybody waiting."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headgate import Event, Limit, RateLimiter, RequestLog, SyncRateLimiter, ValidationError
from headgate.declare import Declaration
from headgate.limiter.observe import request_log
from headgate.replay import RequestLogFile, replay
from headgate.testing import ManualClock

LIMITS = [Limit.per_minute("rpm", 5), Limit.per_minute("tpm", 1000)]
DECLARED = Declaration(system={limit.name: limit for limit in LIMITS})


def event(entity_id: str, name: Any = "acquire.granted") -> Event:
    return Event(name, {"entity_id": entity_id, "resource": "r", "degraded": False, "consume": {"rpm": 1}})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(path: Path) -> list[dict[str, Any]]:
    return [line for line in lines(path) if "headgate_log" not in line]


def test_played_again_under_the_same_limits_nothing_is_new(tmp_path: Path) -> None:
    """Whatever was asked: a log and its replay are of the same mind."""
    path, clock, chance = tmp_path / "log", ManualClock(), random.Random(3)
    with (
        RequestLog(path, clock=clock) as log,
        SyncRateLimiter("memory://", clock=clock, on_event=log) as limiter,
    ):
        limiter.set_system_defaults(LIMITS)
        allowed = [
            bool(limiter.try_acquire(f"e{chance.randrange(5)}", "r", {"rpm": 1, "tpm": chance.randint(1, 400)}))
            for _ in range(300)
            if not clock.advance(chance.choice([0, 0.001, 1, 5]))
        ]
    report = replay(DECLARED, str(path))
    assert report.requests == 300
    assert report.refused == allowed.count(False) > 20
    assert report.newly_refused == report.newly_allowed == 0
    stricter = replay(Declaration(system={"rpm": Limit.per_minute("rpm", 2)}), str(path))
    assert stricter.newly_refused > 0


def test_a_sample_is_of_whole_entities(tmp_path: Path) -> None:
    with RequestLog(tmp_path / "log", sample=0.25) as log:
        for _ in range(3):
            for number in range(2000):
                log(event(f"user-{number}"))
    assert lines(tmp_path / "log")[0] == {"headgate_log": 1, "sample": 0.25}
    counts = Counter(line["entity"] for line in recorded(tmp_path / "log"))
    assert set(counts.values()) == {3}
    assert 400 < len(counts) < 600
    read = RequestLogFile(str(tmp_path / "log"))
    assert sum(1 for _ in read) == 3 * len(counts)
    assert read.sample == 0.25


def test_what_is_in_a_line(tmp_path: Path) -> None:
    clock = ManualClock()
    with RequestLog(tmp_path / "log", clock=clock) as log, SyncRateLimiter("memory://", on_event=log) as limiter:
        for amount in (4, 2):
            limiter.try_acquire("e", "chat", {"rpm": amount, "tpm": 0.5}, LIMITS)
            clock.advance(1.5)
        limiter.penalize("e", "chat", factor=0.5, limits=LIMITS)
    common = {"entity": "e", "resource": "chat"}
    assert recorded(tmp_path / "log") == [
        {"at": "2023-11-14T22:13:20.000Z", **common, "consume": {"rpm": 4, "tpm": 0.5}, "allowed": True},
        {"at": "2023-11-14T22:13:21.500Z", **common, "consume": {"rpm": 2, "tpm": 0.5}, "allowed": False},
    ]


def test_ids_are_recorded_as_they_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RequestLog(path) as log, SyncRateLimiter("memory://", hash_entity_ids=b"key", on_event=log) as limiter:
        limiter.try_acquire("my secret", "r", {"rpm": 1}, LIMITS)
    assert "secret" not in path.read_text()
    assert len(recorded(path)[0]["entity"]) == 40


async def _ask(log: RequestLog) -> None:
    async with RateLimiter("memory://", on_event=log) as limiter:
        await asyncio.gather(*(limiter.try_acquire(f"e{number}", "r", {"rpm": 1}, LIMITS) for number in range(50)))


def test_request_log_has_every_request_of_coroutines(tmp_path: Path) -> None:
    with RequestLog(tmp_path / "log") as log:
        asyncio.run(_ask(log))
    assert len(recorded(tmp_path / "log")) == 50


def test_a_long_log_is_several_files(tmp_path: Path) -> None:
    with RequestLog(tmp_path / "log", max_bytes=1000, keep=2) as log:
        for number in range(60):
            log(event(f"e{number}"))
            log.flush()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log", "log.1", "log.2"]
    for name in names:
        assert lines(tmp_path / name)[0] == {"headgate_log": 1, "sample": 1.0}
        assert 0 < (tmp_path / name).stat().st_size < 1200
    kept = [line["entity"] for name in reversed(names) for line in recorded(tmp_path / name)]
    assert kept == [f"e{number}" for number in range(60 - len(kept), 60)]
    with RequestLog(tmp_path / "log", max_bytes=1000, keep=0) as log:
        for number in range(60):
            log(event(f"e{number}"))
            log.flush()
    assert recorded(tmp_path / "log")[-1]["entity"] == "e59"
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_disk_that_fails_is_nobodys_business(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "not yet" / "log"
    with RequestLog(path) as log, SyncRateLimiter("memory://", on_event=log) as limiter:
        for _ in range(2):
            assert limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
            log.flush()
        assert log.dropped == 2
        assert sum("cannot be recorded" in entry.message for entry in caplog.records) == 1
        path.parent.mkdir()
        assert limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
    assert len(recorded(path)) == 1


def test_what_is_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_QUEUED", 10)
    with RequestLog(tmp_path / "log") as log:
        with log._writing:  # the disk hangs
            for number in range(25):
                log(event(f"e{number}"))
        assert log.dropped == 15
    assert len(recorded(tmp_path / "log")) == 10


def test_request_log_is_written_before_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_PAUSE_SECONDS", 0.01)
    path = tmp_path / "log"
    with RequestLog(path) as log:
        log(event("e"))
        deadline = threading.Event()
        for _ in range(1000):
            if path.exists() and recorded(path):
                break
            deadline.wait(0.02)
        assert len(recorded(path)) == 1
    log(event("e"))
    log.close()
    assert len(recorded(path)) == 1


def test_from_many_threads_no_line_is_lost_or_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_PAUSE_SECONDS", 0.001)

    def ask(number: int) -> None:
        for _ in range(500):
            log(event(f"e{number}"))

    with RequestLog(tmp_path / "log", max_bytes=20_000, keep=100) as log:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counts = Counter(line["entity"] for path in tmp_path.iterdir() for line in recorded(path))
    assert counts == {f"e{number}": 500 for number in range(4)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    with RequestLog(tmp_path / "log-{pid}") as log:
        log(event("before"))
        child = os.fork()
        if not child:
            log(event("child"))
            log.close()
            os._exit(0)
        os.waitpid(child, 0)
        log(event("parent"))
    assert [line["entity"] for line in recorded(tmp_path / f"log-{child}")] == ["child"]
    assert [line["entity"] for line in recorded(tmp_path / f"log-{os.getpid()}")] == ["before", "parent"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sample": 0}, "sample must be a number above 0"),
        ({"sample": 1.5}, "sample must be"),
        ({"sample": True}, "sample must be"),
        ({"sample": float("nan")}, "sample must be"),
        ({"max_bytes": 10}, "max_bytes must be a whole number from 1,000 on"),
        ({"keep": -1}, "keep must be a whole number from 0 on"),
    ],
)
def test_bad_settings_of_a_request_log_are_refused_with_the_reason(
    tmp_path: Path, wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        RequestLog(tmp_path / "log", **wrong)


def test_other_events_are_not_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with RequestLog(tmp_path / "log") as log:
        for name in ("acquire.waited", "penalized", "store.down"):
            log(event("e", name))
        log(event("e", "acquire.refused"))
    assert [line["allowed"] for line in recorded(tmp_path / "log")] == [False]
