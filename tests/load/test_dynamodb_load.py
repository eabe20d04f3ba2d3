"""Four processes of 16 tasks on one table, one of them killed amid: nothing is oversold, in one item or in many.

What is admitted is counted from outside, as in redis_load_helpers: takes that were answered, less whatever was begun to
be given back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from dynamodb_worker import HOT, LONG_ENOUGH, entities_of
from load_helpers import PATIENCE_SECONDS, Operation, most_allowed, surely_admitted, wait_for, without_refill
from redis_load_helpers import Journals

from headgate import Limit, SyncRateLimiter
from headgate.stores import open_store
from headgate.stores.dynamodb.places import ItemPlace
from local_servers.dynamodb import Engine

STRESS = os.environ.get("HEADGATE_STRESS") == "1"
SECONDS = 10.0 if STRESS else 1.0  # before one is killed, and again after it
TASKS = 16
WORKERS = [f"worker-{number}" for number in range(1, 5)]
KILLED = WORKERS[-1]

# About 50 and 10 a second, and no millisecond earns a whole number of anything.
HOT_RATE = Limit.custom("rate", 60, 351, 7)
OWN_RATE = Limit.custom("rate", 5, 71, 7)
POOL = without_refill("pool", 150)
UNLIMITED = [without_refill("rate", 10**9), without_refill("pool", 10**9)]
LARGEST = 5  # what one operation moves at most

seeds = pytest.mark.parametrize("seed", [1, 2] if STRESS else [1])


def alone(worker: str) -> list[str]:
    return [own for task in range(TASKS) if len(entities_of(worker, task)) == 1 and (own := f"{worker}.{task}") in
            entities_of(worker, task)]  # fmt: skip


def below_the_hot_one(worker: str) -> list[str]:
    return [f"{worker}.{task}" for task in range(TASKS) if len(entities_of(worker, task)) > 1]


@pytest.fixture
def url(ministack: Engine, aws_credentials: str) -> str:
    url = ministack.url(f"load-{uuid4().hex}")
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        limiter.setup()
        limiter.set_resource_defaults("api", UNLIMITED)
        limiter.create_entity(HOT)
        limiter.set_limits(HOT, [HOT_RATE, POOL], "api")
        for worker in WORKERS:
            for entity in below_the_hot_one(worker):
                limiter.create_entity(entity, parent_id=HOT, cascade=True)
            for entity in alone(worker):
                limiter.set_limits(entity, [OWN_RATE], "api")
    return url


class Workers:
    """The processes of a load. Use with `with`: none outlives it."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        chance = random.Random(seed)
        program = str(Path(__file__).with_name("dynamodb_worker.py"))
        self._journals = {worker: folder / f"{worker}.jsonl" for worker in WORKERS}
        self._processes = {
            worker: subprocess.Popen(
                [sys.executable, program, url, str(journal), str(chance.getrandbits(32)), str(TASKS)],
                stdin=subprocess.PIPE,
            )
            for worker, journal in self._journals.items()
        }

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()

    def wait_until_busy(self) -> None:
        """Until every worker has been answered."""

        def is_so() -> bool:
            assert all(process.poll() is None for process in self._processes.values()), "a worker has failed"
            return all(path.exists() and b'"outcome"' in path.read_bytes() for path in self._journals.values())

        wait_for(is_so, "every worker to be served")

    def kill(self, worker: str) -> None:
        process = self._processes.pop(worker)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, f"{worker} had ended by itself: {process.returncode}"

    def stop(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for worker, process in self._processes.items():
            assert process.wait(PATIENCE_SECONDS) == 0, f"{worker} failed"

    def operations(self, worker: str) -> list[Operation]:
        return list(_read(self._journals[worker]))


def _read(path: Path) -> Iterator[Operation]:
    # A last line without its end was being written at the moment of death: it does not count.
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    ends = {line["id"]: line for line in lines if "outcome" in line}
    for line in lines:
        if "kind" in line:
            end = ends.get(line["id"], {"outcome": "lost", "ended_ns": time.time_ns()})
            entities = tuple(line["entities"])
            yield Operation(line["kind"], entities, line["amounts"], end["outcome"], line["begun_ns"], end["ended_ns"])


def check_the_rate(journals: Journals, entity: str, limit: Limit) -> Fraction:
    """Over the whole run, for which it is answered, and every part of it."""
    moves = journals.moves(entity)
    for window in reversed(journals.windows()):
        allowed = most_allowed(limit, *window)
        assert surely_admitted(moves, entity, limit.name, *window) <= allowed, f"{entity} within {window}"
    return allowed


def missing(limiter: SyncRateLimiter, entity: str, limit: Limit) -> int:
    """Whole tokens that are gone from an entity's own bucket, a part of one counted as one."""
    found = {bucket.limit.name: bucket.available for bucket in limiter.get_buckets(entity, "api")}
    return int(limit.capacity) - found.get(limit.name, int(limit.capacity))


def net(operations: list[Operation], entity: str, limit_name: str) -> int:
    return sum(o.delta(entity, limit_name) for o in operations if o.outcome == "done")


def check(url: str, operations: dict[str, list[Operation]], record: Callable[[str, object], None], name: str) -> None:
    everything = [one for some in operations.values() for one in some]
    journals = Journals(everything)
    hot = check_the_rate(journals, HOT, HOT_RATE)
    for worker in WORKERS:
        for entity in alone(worker):
            check_the_rate(journals, entity, OWN_RATE)
    outcomes = [o.outcome for o in everything if HOT in o.entities and "rate" in o.amounts]
    assert "refused" in outcomes, "it was never at its limit"
    assert all(o.outcome != "lost" for worker in WORKERS for o in operations[worker] if worker != KILLED)

    in_doubt = sum(o.outcome == "lost" for o in operations[KILLED])
    assert in_doubt <= TASKS
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        for worker in WORKERS:
            for entity in below_the_hot_one(worker):
                for limit in UNLIMITED:
                    gone, known = missing(limiter, entity, limit), net(operations[worker], entity, limit.name)
                    slack = LARGEST if worker == KILLED else 0
                    assert known - slack <= gone <= known + slack, f"{entity} has lost {gone} of {limit.name}"
        taken = net(everything, HOT, "pool")
        while limiter.try_acquire(HOT, "api", {"pool": 1}):
            taken += 1
        # A part of a token may be left in each shard, less than a thousandth.
        assert POOL.capacity - in_doubt * LARGEST - 1 <= taken <= POOL.capacity
    admitted = journals.admitted(HOT)
    row = (name, f"{(journals.end_ns - journals.begin_ns) / 1e9:.1f}", "1", f"{len(everything):,}", f"{in_doubt}")
    record("load", (*row, f"{admitted:,}", f"{int(hot):,}", f"{float(admitted / hot):.1%}"))


@seeds
def test_killed_process_on_dynamodb_oversells_nothing(
    seed: int, url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Workers(url, tmp_path, seed) as workers:
        workers.wait_until_busy()
        time.sleep(SECONDS)
        workers.kill(KILLED)
        time.sleep(SECONDS)
        workers.stop()
        check(url, {one: workers.operations(one) for one in WORKERS}, record_property, "dynamodb")


@seeds
def test_dynamodb_bucket_that_is_split_under_load_oversells_nothing(
    seed: int, url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The hot bucket is split again and again under the hands of those who use it."""
    store: Any = open_store(url, LONG_ENOUGH)
    with Workers(url, tmp_path, seed) as workers:
        workers.wait_until_busy()
        hot = ItemPlace(store._run(store._plans.namespaces.id_plan("default")), HOT, "api", 0)
        places = [hot._replace(shard=shard) for shard in range(64)]
        for number, shard in enumerate(cycle([0, 0, 1, 0, 2, 1, 3])):
            time.sleep(2 * SECONDS / 7)
            store._run(store._plans.shards.split_plan(hot._replace(shard=shard)))
            if number == 3:
                workers.kill(KILLED)
            if number >= 6 and len(store._run(store._plans._buckets._cross_shard.rows_plan(places))) >= 8:
                break
        workers.stop()
        store.close()
        check(url, {one: workers.operations(one) for one in WORKERS}, record_property, "dynamodb in shards")
