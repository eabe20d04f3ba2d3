"""Worker processes of the demo and the load test: counting, failing, stopping, and what other users can see of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("click")

from headgate import RateLimiterUnavailable
from headgate.cli.workers import Assignment, Worker, WorkerPool, temporary_folder, watch

COUNT, BEGAN = range(2)


def count(assignment: Assignment) -> None:
    """Once told to begin, until told to stop."""
    mine = assignment.counters.slot(assignment.number)
    while not assignment.counters.begun and not assignment.over:
        time.sleep(0.001)
    mine[BEGAN] = 1
    while not assignment.over:
        mine[COUNT] += len(assignment.job)
        time.sleep(0.001)


def fail(assignment: Assignment) -> None:
    raise ValueError(f"job {assignment.job} cannot be done")


def hang(assignment: Assignment) -> None:
    assignment.counters.slot(assignment.number)[BEGAN] = 1
    while True:
        time.sleep(60)


def pool_of(work: str, folder: Path, workers: int, job: str = "secret") -> WorkerPool:
    pool = WorkerPool("test", f"{__name__}:{work}", job, folder, 2, workers)
    for _ in range(workers):
        pool.start()
    return pool


def wait_for(pool: WorkerPool, index: int) -> list[Worker]:
    deadline = time.monotonic() + 60
    while not all(worker.slot[index] for worker in pool.workers):
        pool.check_alive()
        assert time.monotonic() < deadline, "the workers do not start"
        time.sleep(0.01)
    return pool.workers


def stop(pool: WorkerPool, seconds: float) -> list[int | None]:
    pool.counters.stop()
    pool.wait(time.monotonic() + seconds)
    return [worker.process.poll() for worker in pool.workers]


def test_workers_count_from_the_signal_to_begin_until_the_signal_to_stop(tmp_path: Path) -> None:
    pool = pool_of("count", tmp_path, 2)
    assert [worker.slot.tolist() for worker in pool.workers] == [[0, 0], [0, 0]]
    pool.counters.begin()
    wait_for(pool, COUNT)
    assert stop(pool, 60) == [0, 0]
    assert pool.failed == []
    assert all(worker.slot[COUNT] % len("secret") == 0 for worker in pool.workers)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads the arguments of processes in /proc")
def test_the_job_of_a_worker_is_not_among_its_arguments(tmp_path: Path) -> None:
    pool = pool_of("count", tmp_path, 1, job="redis://:password@host")
    pool.counters.begin()
    (worker,) = wait_for(pool, COUNT)
    assert "password" not in Path(f"/proc/{worker.process.pid}/cmdline").read_text()
    stop(pool, 60)


def test_a_worker_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    pool = pool_of("fail", tmp_path, 1)
    pool.workers[0].process.wait(60)
    with pytest.raises(RateLimiterUnavailable, match="worker 1 of the test ended: ValueError: job secret cannot be"):
        pool.check_alive()


def test_a_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    pool = pool_of("hang", tmp_path, 1)
    wait_for(pool, BEGAN)
    assert stop(pool, 0) == [-signal.SIGKILL]
    assert pool.failed == [], "it was killed on purpose"


def test_ctrl_c_does_not_end_a_worker(tmp_path: Path) -> None:
    pool = pool_of("count", tmp_path, 1)
    pool.counters.begin()
    (worker,) = wait_for(pool, COUNT)
    worker.process.send_signal(signal.SIGINT)
    before = worker.slot[COUNT]
    deadline = time.monotonic() + 60
    while worker.slot[COUNT] == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.slot[COUNT] > before
    assert stop(pool, 60) == [0]


def test_watching_ends_when_a_frame_says_so_or_with_ctrl_c() -> None:
    frames = iter([True, False])
    assert watch(lambda: next(frames)) is False

    def interrupted() -> bool:
        raise KeyboardInterrupt

    assert watch(interrupted) is True


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP"])
def test_a_temporary_folder_is_removed_when_the_process_is_asked_to_end(how: str) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_folder("headgate-test-") as folder:
        assert folder.is_dir()
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)
    assert not folder.exists()
    assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
