"""Many at once on one server: exactly as much as is allowed, and never a deadlock."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial

import pytest
from postgres_helpers import emptied, race
from redis_helpers import fixed, opened

from headgate import Limit
from headgate.core.decide import FORCE, PEEK, TAKE, Part, Request, refund
from headgate.core.records import Put
from headgate.stores import Store, open_store
from local_servers.postgres import PgBouncer, PostgresServer

KEYS = [f"storm/e{number}#r" for number in range(6)]
TOKENS, SLOTS = fixed(40), Limit.concurrent("x", 3, 3600)

_TAKER = """
import json, sys
from headgate import Limit, SyncRateLimiter
with SyncRateLimiter(sys.argv[1], store_timeout=20.0) as limiter:
    limit = Limit.custom("n", 100, 0.001, 366 * 86_400)
    print(json.dumps(sum(bool(limiter.try_acquire("e", "r", {"n": 1}, [limit])) for _ in range(60))))
"""


def cascades(url: str, seed: int) -> dict[str, int]:
    """Takes from several keys at once in any order, gives some back, amid sweeps and resets. What it kept, by key."""
    chance = random.Random(seed)
    kept = dict.fromkeys(KEYS, 0)
    store = open_store(url, 20.0)
    try:
        for number in range(30):
            batch = [_request(chance, f"{seed}-{number}-{place}") for place in range(chance.randint(1, 4))]
            for request, answer in zip(batch, store.settle(batch, None)):
                if request.mode is TAKE and answer.allowed:
                    _keep_or_give_back(store, request, kept, chance)
            if number % 10 == 9:
                _look_after(store, chance)
    finally:
        store.close()
    return kept


def _request(chance: random.Random, lease_id: str) -> Request:
    keys = tuple(chance.sample(KEYS, chance.randint(1, 4)))
    parts = tuple(Part(level, TOKENS, 1000) for level in range(len(keys)))
    if chance.random() < 0.4:
        parts = (*parts, Part(0, SLOTS, 1000))
    return Request(chance.choice([TAKE, TAKE, TAKE, PEEK]), keys, parts, lease_id=lease_id)


def _keep_or_give_back(store: Store, request: Request, kept: dict[str, int], chance: random.Random) -> None:
    if chance.random() < 0.7:
        store.settle([refund(request)], None)
        return
    slots = tuple(part._replace(amount_milli=-1000) for part in request.parts if part.limit.is_concurrent)
    if slots:
        store.settle([Request(FORCE, request.keys, slots, lease_id=request.lease_id)], None)
    for key in request.keys:
        kept[key] += 1


def _look_after(store: Store, chance: random.Random) -> None:
    store.sweep("storm", None)
    store.delete_buckets(chance.sample([f"storm/other{number}#r" for number in range(5)], 3))
    store.write_records([Put(f"storm/r{number}", {}) for number in chance.sample(range(6), 3)], None)
    store.purge("storm-that-is-not-there")


@pytest.mark.parametrize("through", ["directly", "pgbouncer"])
def test_a_storm_of_cascades_has_no_deadlock(
    postgres_server: PostgresServer, pgbouncer: PgBouncer, through: str
) -> None:
    url = emptied(postgres_server)
    written = len(postgres_server.log)
    where = url if through == "directly" else pgbouncer.url
    kept = race([partial(cascades, where, seed) for seed in range(4)])
    with opened("sync", url, namespace="storm") as limiter:
        for number, key in enumerate(KEYS):
            taken = sum(one[key] for one in kept)
            assert limiter.available(f"e{number}", "r", [TOKENS, SLOTS]) == {"n": 40 - taken, "x": 3}
    assert "deadlock" not in postgres_server.log[written:]


def test_processes_share_a_limit_to_the_token(postgres_server: PostgresServer) -> None:
    url = emptied(postgres_server)
    processes = [
        subprocess.Popen([sys.executable, "-c", _TAKER, url], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    admitted = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(admitted) == 100
