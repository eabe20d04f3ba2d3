"""Four processes of 32 tasks on one hot key in Redis: nothing is oversold, whatever happens to the server.

How it is counted, and what that proves, is in redis_load_helpers.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from load_helpers import POOL, most_allowed, wait_for, wrongly_refused
from redis.exceptions import RedisError
from redis_load_helpers import (
    HOT,
    LONG_ENOUGH,
    PLAIN,
    RATE,
    STORE_TIMEOUT,
    Faults,
    Journals,
    Workers,
    buckets,
    check_the_ledgers,
    check_the_rate,
    configure,
)

from headgate import Limit, SyncRateLimiter
from headgate.core.bucket import Bucket
from headgate.stores.redis.keys import slot_of
from headgate.testing.servers.redis import RedisCluster, RedisSentinel, RedisServer

STRESS = os.environ.get("HEADGATE_STRESS") == "1"
# From half to full takes it longer than a test: it never loses anything to its rim.
SLOW = Limit.custom("rate", 2000, 141, 7)
TOKEN = 1000 * SLOW.period_ms

# It decides what each task asks for, and what is done to the server when. As a parameter, so that a failure shows it.
seeds = pytest.mark.parametrize("seed", [1, 2] if STRESS else [1])
one_seed = pytest.mark.parametrize("seed", [1])
Report = Callable[[Journals, dict[str, Fraction]], None]


@pytest.fixture
def report(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Report:
    """Leave a line for the table at the end."""

    def leave(journals: Journals, at_most: dict[str, Fraction]) -> None:
        admitted, allowed = sum(map(journals.admitted, at_most)), sum(at_most.values())
        row = (
            request.node.name.removeprefix("test_").replace("_", " "),
            f"{(journals.end_ns - journals.begin_ns) / 1e9:.1f}",
            f"{len(journals.faults)}",
            f"{len(journals.operations):,}",
            f"{journals.unanswered:,}",
            f"{admitted:,}",
            f"{int(allowed):,}",
            f"{float(admitted / allowed):.1%}",
        )
        record_property("load", row)

    return leave


@seeds
def test_healthy_redis_grants_exactly_what_the_bucket_has(
    seed: int, own_redis_server: RedisServer, tmp_path: Path, report: Report
) -> None:
    """Not one token more than the bucket has, and not one less."""
    url = own_redis_server.url
    configure(url, SLOW)
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        for entity in (HOT, PLAIN):
            assert limiter.try_acquire(entity, "api", {"rate": SLOW.capacity / 2})
        before = buckets(url)
        with Workers(url, tmp_path, seed, LONG_ENOUGH) as workers:
            workers.wait_until_busy()
            time.sleep(5 if STRESS else 1)
            workers.stop()
        after = buckets(url)
        journals = Journals(workers.operations)
        assert not journals.unanswered
        check_the_ledgers(journals, url)
        assert not wrongly_refused([o for o in journals.operations if "pool" in o.amounts], HOT, POOL)

        taken, _ = journals.missing()
        had = {}
        for place in ((HOT, "rate"), (PLAIN, "rate")):
            entity, _ = place
            worth = worth_at(before[place], after[place].settled_at_ms)
            assert worth_at(after[place], after[place].settled_at_ms) == worth - taken[place] * TOKEN
            check_what_is_left(limiter, own_redis_server, entity, before[place], taken[place])
            had[entity] = Fraction(worth, TOKEN)
    report(journals, had)


def worth_at(bucket: Bucket, now_ms: int) -> int:
    """What is in a bucket if nobody takes anything, in the parts of a millitoken that a millisecond may earn."""
    earned = (now_ms - bucket.settled_at_ms) * SLOW.refill_milli
    return bucket.tokens_milli * SLOW.period_ms + bucket.remainder + earned


def check_what_is_left(
    limiter: SyncRateLimiter, server: RedisServer, entity: str, before: Bucket, admitted: int
) -> None:
    """Take it: then the bucket has given whatever it had, to the last millisecond."""
    since_ms = server_time_ms(server)
    while limiter.try_acquire(entity, "api", {"rate": 1}):
        admitted += 1
        since_ms = server_time_ms(server)
    until_ms = server_time_ms(server)
    assert worth_at(before, since_ms) // TOKEN <= admitted <= worth_at(before, until_ms) // TOKEN


def server_time_ms(server: RedisServer) -> int:
    seconds, microseconds = server.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


@seeds
def test_restarts_of_a_server_that_remembers(seed: int, redis_installed: None, tmp_path: Path, report: Report) -> None:
    """What is on the disk before it is answered outlives kill -9: the limit holds as if nothing had happened."""
    chance, faults = random.Random(seed), Faults()
    with RedisServer(persistent=True) as server:
        configure(server.url)
        with Workers(server.url, tmp_path, seed, STORE_TIMEOUT) as workers:
            workers.wait_until_busy()
            for _ in range(8 if STRESS else 3):
                time.sleep(chance.uniform(0.1, 0.5))
                faults.kill_and_restart(server, chance.uniform(0, 0.2))
                workers.wait_until_granted()
            workers.wait_until_busy()
            workers.stop()
        journals = Journals(workers.operations, faults)
        report(journals, {entity: check_the_rate(journals, entity) for entity in (HOT, PLAIN)})
        check_the_ledgers(journals, server.url)


@seeds
@pytest.mark.parametrize("cold_start", ["1", "0"], ids=["full", "cold"])
def test_restarts_of_a_server_that_forgets(
    seed: int, cold_start: str, own_redis_server: RedisServer, tmp_path: Path, report: Report
) -> None:
    """Each life of the server has a bucket of its own, which lives no longer than the server.

    A bucket admits no more than it starts with and what it gains. Lives do not overlap, so all together gain no more
    than rate x time. If they start full, that makes (restarts + 1) x capacity + rate x time. If they start empty,
    at the moment the server is first used, it is rate x time alone; and between any two moments capacity +
    rate x time, for the bucket of the first of these lives may have been full.

    What was taken in one life may be given back in the next. It then counts as given back there.
    """
    server, chance, faults = own_redis_server, random.Random(seed), Faults()
    with Workers(f"{server.url}?cold_start={cold_start}", tmp_path, seed, STORE_TIMEOUT, "given") as workers:
        workers.wait_until_busy()
        for _ in range(6 if STRESS else 2):
            time.sleep(chance.uniform(0.1, 0.5))
            faults.kill_and_restart(server, chance.uniform(0, 0.2))
            workers.wait_until_granted()
        workers.wait_until_busy()
        workers.stop()
    journals = Journals(workers.operations, faults)
    at_most = check_the_rate(journals, HOT, starts_full=cold_start == "1")
    if cold_start == "0":
        at_most -= RATE.capacity
        assert journals.admitted(HOT) <= at_most
    report(journals, {HOT: at_most})


@seeds
def test_redis_faults_without_a_restart_oversell_nothing(
    seed: int, own_redis_server: RedisServer, tmp_path: Path, report: Report
) -> None:
    """Scripts forgotten, connections closed, answers lost, and a server that stands still, for short and for long."""
    server, chance, faults = own_redis_server, random.Random(seed), Faults()
    configure(server.url)
    with Workers(server.url, tmp_path, seed, STORE_TIMEOUT) as workers:
        workers.wait_until_busy()
        for _ in range(2 if STRESS else 1):
            kinds: list[Callable[[], None]] = [
                lambda: faults.flush_scripts(server),
                lambda: faults.kill_clients(server),
                *[lambda: faults.lose_answers(server)] * 5,
                lambda: faults.pause(server, chance.uniform(0.05, 0.2)),
                lambda: faults.pause(server, STORE_TIMEOUT + 0.2),
            ]
            for fault in chance.sample(kinds, len(kinds)):
                time.sleep(chance.uniform(0, 0.3))
                fault()
                workers.wait_until_granted()
        workers.wait_until_busy()
        workers.stop()
    journals = Journals(workers.operations, faults)
    report(journals, {entity: check_the_rate(journals, entity) for entity in (HOT, PLAIN)})
    check_the_ledgers(journals, server.url)


@one_seed
def test_a_cluster_whose_nodes_restart(seed: int, redis_installed: None, tmp_path: Path, report: Report) -> None:
    """Entities all over the cluster, one above them all: it is never oversold, whichever node is away."""
    chance, faults = random.Random(seed), Faults()
    with RedisCluster() as cluster:
        for node in cluster.servers:
            make_persistent(node)
        configure(cluster.url)
        parents = cluster.owner(slot_of(HOT))
        others = [node for node in cluster.servers if node is not parents]
        with Workers(cluster.url, tmp_path, seed, STORE_TIMEOUT) as workers:
            workers.wait_until_busy()
            for _ in range(2 if STRESS else 1):
                for node in (parents, chance.choice(others)):
                    time.sleep(chance.uniform(0.3, 0.6))
                    faults.kill_and_restart(node, 0.2, then=cluster.wait_until_ok)
                    workers.wait_until_granted()
            workers.wait_until_busy()
            workers.stop()
        journals = Journals(workers.operations, faults)
        report(journals, {entity: check_the_rate(journals, entity) for entity in (HOT, PLAIN)})
        check_the_ledgers(journals, cluster.url)


def make_persistent(node: RedisServer) -> None:
    node.command("CONFIG", "SET", "appendonly", "yes")
    wait_for(lambda: not node.info("persistence")["aof_rewrite_in_progress"], "the node to have written its data")
    node.command("CONFIG", "REWRITE")


@one_seed
def test_failover_forgets_no_more_than_the_lost_window(
    seed: int, redis_sentinel: RedisSentinel, tmp_path: Path, report: Report
) -> None:
    """Replication lags, so that a failover forgets what was answered last. What may be forgotten is known.

    The new primary has all that the old one had done up to some moment, and nothing that it did afterwards. That
    moment is not before the last one at which the replica was asked how far it is, and the old primary answers nobody
    after its death (or, told to step down, after it has heard of it). So what is forgotten was done between these two
    moments, in a lost window.

    - All else is one history of one bucket: without what was answered in lost windows, it is capacity + rate x time.
    - In a lost window a bucket admits no more than it has and gains, which is capacity + rate x window. So all
      together it is (failovers + 1) x capacity + rate x (time + lost windows).
    """
    sentinel, faults, failovers = redis_sentinel, Faults(), 3 if STRESS else 1
    lost_windows = []
    configure(sentinel.url)
    with Workers(sentinel.url, tmp_path, seed, STORE_TIMEOUT) as workers:
        workers.wait_until_busy()
        for number in range(failovers):
            time.sleep(0.5)
            with faults.during("failover"):
                lost_windows.append(step_down(sentinel) if number % 2 else die(sentinel))
            workers.wait_until_granted()
            if number + 1 < failovers and not sentinel.replica.running:
                sentinel.replica.start()
        workers.wait_until_busy()
        workers.stop()
    journals = Journals(workers.operations, faults)
    in_one_history = most_allowed(RATE, journals.begin_ns, journals.end_ns)
    at_most = in_one_history + sum(most_allowed(RATE, *window) for window in lost_windows)
    report(journals, {HOT: at_most, PLAIN: at_most})
    remembered = journals.without_answers(lost_windows)
    for entity in (HOT, PLAIN):
        assert journals.admitted(entity) <= at_most
        assert remembered.admitted(entity) <= in_one_history
    check_the_ledgers(remembered, sentinel.url)


@one_seed
def test_failover_forgets_nothing_that_a_replica_has_confirmed(
    seed: int, redis_installed: None, tmp_path: Path, report: Report
) -> None:
    """With `wait_replicas` no window is lost: it is one history of one bucket, whoever is the primary."""
    faults = Faults()
    with RedisSentinel() as sentinel:
        replicated_at_ns(sentinel.primary)
        configure(sentinel.url)
        url = f"{sentinel.url}?wait_replicas=1&wait_timeout_ms=100"
        with Workers(url, tmp_path, seed, STORE_TIMEOUT) as workers:
            workers.wait_until_busy()
            for number in range(3 if STRESS else 1):
                time.sleep(0.5)
                with faults.during("failover"):
                    (die if number % 2 else step_down)(sentinel)
                    if not sentinel.replica.running:
                        sentinel.replica.start()
                    workers.wait_until_granted()
            workers.wait_until_busy()
            workers.stop()
        journals = Journals(workers.operations, faults)
        report(journals, {entity: check_the_rate(journals, entity) for entity in (HOT, PLAIN)})
        check_the_ledgers(journals, sentinel.url)


def die(sentinel: RedisSentinel) -> tuple[int, int]:
    """Kill a primary that has lost its replica a moment before; when that is over, the lost window."""
    primary, replica = sentinel.primary, sentinel.replica
    begun_ns = replicated_at_ns(primary)
    replica.pause()
    primary.command("CLIENT", "KILL", "TYPE", "replica")
    time.sleep(0.2)
    sentinel.kill_primary()
    ended_ns = time.time_ns()
    replica.resume()
    sentinel.wait_for_failover()
    return begun_ns, ended_ns


def step_down(sentinel: RedisSentinel) -> tuple[int, int]:
    """Let the sentinels replace a primary that is well; when that is over, the lost window."""
    sentinel.wait_until_ok()
    old = sentinel.primary
    begun_ns = replicated_at_ns(old)
    sentinel.failover()
    wait_for(lambda: is_replica(old), "the old primary to step down")
    return begun_ns, time.time_ns()


def is_replica(server: RedisServer) -> bool:
    try:
        return bool(server.command("ROLE")[0] == "slave")
    except RedisError:  # the sentinels close all connections to whom they tell something new
        return False


def replicated_at_ns(primary: RedisServer) -> int:
    """A moment up to which the replica has everything."""
    now_ns = time.time_ns()
    with primary.client(single_connection_client=True) as client:
        client.set("replicated", now_ns)
        assert client.wait(1, 20_000) == 1
    return now_ns
