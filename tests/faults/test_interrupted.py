"""Ctrl-C amid acquires, and a fork in the body of one: what was taken comes back, and comes back once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fault_helpers import LONG_ENOUGH, PATIENCE_SECONDS, Place

from headgate import Limit

CAPACITY, AT_ONCE = 1000, 20
LIMIT = Limit.custom("n", CAPACITY, 0.001, 366 * 86_400)  # as good as no refill
PROGRAM = str(Path(__file__).with_name("interrupted_process.py"))


def left(place: Place) -> int:
    with place.limiter() as limiter:
        return limiter.available("e", "r", [LIMIT])["n"]


@contextmanager
def started(place: Place, work: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, PROGRAM, *place, work, str(LONG_ENOUGH)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ends(process: subprocess.Popen[str]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    return process.returncode is not None


def interrupt(place: Place, times: int, chance: random.Random) -> None:
    """It is over in time, whatever it was at.

    More than one interrupt may be raised inside the event loop, which then forgets the task it was about to wake
    (of any program: no library can see it). A person presses the keys again, and so does this.
    """
    with started(place, "gather") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asking\n"
        time.sleep(chance.uniform(0, 0.05))
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(chance.uniform(0, 0.002))
        if times == 1:
            assert process.wait(PATIENCE_SECONDS) != 0
        for _ in range(int(PATIENCE_SECONDS)):
            if ends(process):
                break
            process.send_signal(signal.SIGINT)
        assert process.returncode not in (None, 0)


@pytest.mark.parametrize("seed", range(3))
def test_interrupted_gather_of_acquires_leaves_nothing_taken(place: Place, seed: int) -> None:
    interrupt(place, 1, random.Random(seed))
    assert left(place) == CAPACITY


@pytest.mark.parametrize("seed", range(3))
def test_second_interrupt_costs_at_most_the_call_that_was_under_way(place: Place, seed: int) -> None:
    """It is raised amid whatever runs, be it a refund: that is not sent twice, since it may have landed."""
    interrupt(place, 2, random.Random(seed))
    assert CAPACITY - AT_ONCE <= left(place) <= CAPACITY


@pytest.mark.parametrize("work", ["fork", "fork in a task"])
def test_body_that_both_sides_of_a_fork_leave_by_an_exception_is_given_back_once(place: Place, work: str) -> None:
    with place.limiter() as limiter:
        limiter.adjust("e", "r", {"n": 500}, [LIMIT])  # so that nothing is lost to the rim
    with started(place, work) as process:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert json.loads(out) == {"child ended with": 0, "in the body": CAPACITY - 510, "after it": CAPACITY - 500}
    assert left(place) == CAPACITY - 500
