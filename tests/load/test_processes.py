"""Four processes of four threads on one store: nothing lost, nothing counted twice, killed or not."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from contextlib import closing
from itertools import pairwise, product
from pathlib import Path
from uuid import uuid4

import pytest
from load_helpers import (
    COMPANY,
    COMPANY_RATE,
    LEDGER,
    NS_PER_MS,
    POOL,
    PROCESSES,
    TEAM_RATE,
    TEAMS,
    Crowd,
    Operation,
    clear_doubt,
    configure,
    missing,
    most_allowed,
    net,
    read_journals,
    surely_admitted,
    wrongly_refused,
)

from headgate import Limit, SyncRateLimiter

STRESS = os.environ.get("HEADGATE_STRESS") == "1"
LEAST_KILLS = 5
RATES: list[tuple[str, Limit]] = [(COMPANY, COMPANY_RATE), *product(TEAMS, [TEAM_RATE])]

# It decides what each thread asks for, and who is killed when. As a parameter, so that a failure shows it.
seeds = pytest.mark.parametrize("seed", [1, 2, 3] if STRESS else [1])


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'load.db'}"
    elif request.param == "postgres":
        url = f"{request.getfixturevalue('postgres_server').url}?schema=load_{uuid4().hex[:12]}"
        with SyncRateLimiter(url, store_timeout=30) as limiter:
            limiter.setup()
    else:
        url = request.getfixturevalue("own_redis_server").url
    configure(url)
    return url


@seeds
def test_every_token_is_accounted_for(seed: int, url: str, tmp_path: Path) -> None:
    with Crowd(url, tmp_path, random.Random(seed)) as crowd:
        crowd.start(PROCESSES)
        crowd.wait_until_busy()
        time.sleep(3 if STRESS else 1)
        crowd.stop()
    journals = read_journals(tmp_path)
    assert all(journal[-1].outcome for journal in journals), "nobody was killed, nothing is in doubt"
    check(journals, url)


@seeds
@pytest.mark.timeout(600)
def test_every_token_is_accounted_for_after_kill_9(seed: int, url: str, tmp_path: Path) -> None:
    chance = random.Random(seed)
    seconds = (60 if STRESS else 2) if is_a_file(url) else (4 if STRESS else 1.5)
    with Crowd(url, tmp_path, chance) as crowd:
        crowd.start(PROCESSES)
        crowd.wait_until_busy()
        end = time.monotonic() + seconds
        while time.monotonic() < end or crowd.killed < LEAST_KILLS:
            time.sleep(chance.uniform(0.02, 0.4))
            crowd.kill_some()
        crowd.wait_until_busy()
        crowd.stop()
    check(read_journals(tmp_path), url)


def is_a_file(url: str) -> bool:
    return url.startswith("sqlite:")


def check(journals: list[list[Operation]], url: str) -> None:
    with SyncRateLimiter(url, store_timeout=20) as limiter:
        operations = [operation for journal in journals for operation in clear_doubt(journal, limiter)]
        check_the_ledgers(operations, limiter)
        check_the_pool(operations, limiter)
        check_the_rates(operations, limiter)
        check_it_works(limiter)
    if is_a_file(url):
        check_the_file(Path(url.removeprefix("sqlite:///")))


def check_the_ledgers(operations: list[Operation], limiter: SyncRateLimiter) -> None:
    """What is missing is what was taken, on every level; what was refused left no trace on any."""
    for entity in (COMPANY, *TEAMS):
        assert missing(limiter, entity, LEDGER) == net(operations, entity, "ledger"), f"the ledger of {entity}"


def check_the_pool(operations: list[Operation], limiter: SyncRateLimiter) -> None:
    """Many want the last token: it is given once, and nobody is refused what is there."""
    taken = net(operations, COMPANY, "pool")
    assert missing(limiter, COMPANY, POOL) == taken
    assert taken <= POOL.capacity
    assert not wrongly_refused(operations, COMPANY, POOL)


def check_the_rates(operations: list[Operation], limiter: SyncRateLimiter) -> None:
    """admitted <= capacity + rate x elapsed, over the whole run and every part of it; and what is left agrees."""
    begin_ns = min(operation.begun_ns for operation in operations)
    end_ns = max(operation.ended_ns for operation in operations)
    windows = [(begin_ns, end_ns), *pairwise(range(begin_ns, end_ns, 500 * NS_PER_MS))]
    for entity, limit in RATES:
        moves = [o for o in operations if o.outcome == "done" and o.delta(entity, "rate")]
        for window in windows:
            admitted = surely_admitted(moves, entity, "rate", *window)
            assert admitted <= most_allowed(limit, *window), f"{entity} within {window}"
        taken, gone = net(operations, entity, "rate"), missing(limiter, entity, limit)
        refilled = most_allowed(limit, begin_ns, time.time_ns()) - limit.capacity
        assert taken - refilled <= gone <= taken, f"the tokens of {entity}"


def check_it_works(limiter: SyncRateLimiter) -> None:
    before = missing(limiter, COMPANY, LEDGER)
    limiter.adjust(TEAMS[0], "api", {"ledger": 7})
    assert missing(limiter, COMPANY, LEDGER) == before + 7


def check_the_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"HGat", "big"),)
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
