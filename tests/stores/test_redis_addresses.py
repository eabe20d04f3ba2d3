"""Wherever Redis is: on a port, on a socket, encrypted, behind sentinels. And if it is not there, or lets nobody in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis_helpers import Load, attempt, both_kinds, fail_over, fixed, on_server, opened, patiently

from headgate import RateLimiterUnavailable, StoreRefused
from headgate.testing.servers.process import eventually, free_port
from headgate.testing.servers.redis import RedisCluster, RedisSentinel, RedisServer
from headgate.testing.servers.redis.certificate import make_certificate

TEN = fixed(10)
PLENTY = fixed(1_000_000)
HERE = "addresses"  # a namespace of its own on servers that are there for all
WISH = ("e", "r", {"n": 1}, [PLENTY])


def check(limiter: Any) -> None:
    """Everything a store does, once."""
    limiter.ping()
    limiter.setup()
    limiter.reset("e", "r")
    limiter.set_limits("e", [TEN])
    assert limiter.get_limits("e") == [TEN]
    assert limiter.try_acquire("e", "r", {"n": 4})
    limiter.adjust("e", "r", {"n": -1})
    assert [bucket.available for bucket in limiter.get_buckets("e")] == [7]
    limiter.delete_limits("e")


@both_kinds
class TestOneServer:
    def test_redis_works_on_its_port(self, kind: str, redis_server: RedisServer) -> None:
        with opened(kind, redis_server.url, namespace=HERE) as limiter:
            check(limiter)

    def test_redis_works_on_its_socket(self, kind: str, redis_server: RedisServer) -> None:
        with opened(kind, redis_server.unix_url, namespace=HERE) as limiter:
            check(limiter)

    def test_databases_of_a_server_share_no_buckets(self, kind: str, redis_server: RedisServer) -> None:
        for url in (redis_server.url.replace("/0", "/3"), redis_server.unix_url.replace("db=0", "db=4")):
            with opened(kind, url, namespace=HERE) as limiter, opened(kind, redis_server.url, namespace=HERE) as other:
                other.reset("e", "r")
                check(limiter)
                assert other.get_buckets("e") == []

    def test_with_a_password_and_a_user(self, kind: str, redis_installed: None) -> None:
        with RedisServer(options={"requirepass": "p/w@:#"}) as server:
            server.command("ACL", "SETUSER", "me", "on", ">s3cret", "+@all", "~headgate:*")
            for login in (":p%2Fw%40%3A%23", "me:s3cret"):
                with opened(kind, f"redis://{login}@127.0.0.1:{server.port}") as limiter:
                    check(limiter)
            with opened(kind, f"redis+unix://me:s3cret@{server.socket}") as limiter:
                check(limiter)


@both_kinds
class TestEncrypted:
    def test_tls_works_with_the_authority_of_the_server(self, kind: str, tls_redis_server: RedisServer) -> None:
        with opened(kind, tls_redis_server.tls_url) as limiter:
            check(limiter)

    def test_tls_works_without_verification_if_asked_for(self, kind: str, tls_redis_server: RedisServer) -> None:
        with opened(kind, f"rediss://localhost:{tls_redis_server.tls_port}?ssl_cert_reqs=none") as limiter:
            check(limiter)

    def test_tls_with_another_authority_is_refused_and_shows_no_password(
        self, kind: str, tls_redis_server: RedisServer, tmp_path: Path
    ) -> None:
        make_certificate(tmp_path)
        url = f"rediss://:s3cret@localhost:{tls_redis_server.tls_port}?ssl_ca_certs={tmp_path}/ca.crt"
        for on_unavailable in ("block", "allow"):
            with opened(kind, url, on_unavailable=on_unavailable) as limiter:
                with pytest.raises(RateLimiterUnavailable, match="certificate verify failed") as caught:
                    limiter.ping()
                assert "s3cret" not in str(caught.value)

    def test_tls_without_a_known_authority_is_refused(self, kind: str, tls_redis_server: RedisServer) -> None:
        url = f"rediss://localhost:{tls_redis_server.tls_port}"
        with opened(kind, url) as limiter, pytest.raises(RateLimiterUnavailable, match="certificate verify failed"):
            limiter.ping()

    def test_a_file_that_is_not_there(self, kind: str, tls_redis_server: RedisServer) -> None:
        url = f"rediss://localhost:{tls_redis_server.tls_port}?ssl_ca_certs=/none"
        with opened(kind, url) as limiter, pytest.raises(RateLimiterUnavailable, match="No such file"):
            limiter.ping()


@pytest.fixture(scope="module")
def guarded_server(redis_installed: None) -> Iterator[RedisServer]:
    with RedisServer(options={"requirepass": "s3cret-1"}) as server:
        server.command("ACL", "SETUSER", "reader", "on", ">s3cret-2", "+@read", "+zrangebylex", "~headgate:*")
        server.command("ACL", "SETUSER", "stranger", "on", ">s3cret-3", "+@all", "~other:*")
        yield server


def at(login: str, database: str = "") -> Callable[[RedisServer], str]:
    return lambda server: f"redis://{login}127.0.0.1:{server.port}{database}"


@both_kinds
@pytest.mark.parametrize(
    ("url", "told"),
    [
        (at(":s3cret@"), "WRONGPASS.*does not accept the user name or the password"),
        (at("me:s3cret@"), "WRONGPASS.*does not accept the user name or the password"),
        (at(""), r"NOAUTH.*wants a password: redis://user:password@host"),
        (at("reader:s3cret-2@"), r"NOPERM.*lacks a permission; headgate needs .* headgate:\*"),
        (at("stranger:s3cret-3@"), r"NOPERM.*lacks a permission; headgate needs .* headgate:\*"),
        (at(":s3cret-1@", "/16"), "DB index is out of range"),
        (lambda it: f"redis+cluster://:s3cret-1@127.0.0.1:{it.port}", "cluster support disabled"),
        (lambda it: f"redis+sentinel://:s3cret@127.0.0.1:{it.port}/main", "no sentinel names a primary.*unknown"),
    ],
    ids=[
        "wrong password", "unknown user", "no password", "read only user", "other keys", "no such database",
        "no cluster", "no sentinel",
    ],
)  # fmt: skip
def test_server_that_rejects_headgate_is_an_error_under_every_outage_policy(
    kind: str, guarded_server: RedisServer, url: Callable[[RedisServer], str], told: str
) -> None:
    with opened(kind, url(guarded_server)) as limiter:
        for on_unavailable in ("block", "allow", "local"):
            for _ in range(3):  # more in all than it takes to open the breaker
                with pytest.raises(StoreRefused, match=told) as caught:
                    limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable=on_unavailable)
                assert "s3cret" not in str(caught.value)
        with pytest.raises(StoreRefused, match=told):
            limiter.adjust("e", "r", {"n": 1}, [TEN])
        assert limiter.breaker_state == "closed"


@both_kinds
def test_cluster_that_rejects_headgate_is_an_error_under_every_outage_policy(
    kind: str, redis_cluster: RedisCluster
) -> None:
    for server in redis_cluster.servers:
        server.command("ACL", "SETUSER", "stranger", "on", ">s3cret", "+@all", "~other:*")
    url = redis_cluster.url.replace("://", "://stranger:s3cret@")
    with opened(kind, url) as limiter:
        for on_unavailable in ("block", "allow", "local"):
            with pytest.raises(StoreRefused, match="NOPERM"):
                limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable=on_unavailable)
        assert limiter.breaker_state == "closed"


@both_kinds
def test_server_that_rejects_headgate_is_used_once_it_does_not(kind: str, redis_installed: None) -> None:
    with (
        RedisServer(options={"requirepass": "s3cret-1"}) as server,
        opened(kind, at("me:s3cret-2@")(server)) as limiter,
    ):
        with pytest.raises(StoreRefused):
            limiter.try_acquire("e", "r", {"n": 1}, [TEN])
        server.command("ACL", "SETUSER", "me", "on", ">s3cret-2", "+@all", "~headgate:*")
        check(limiter)


@both_kinds
@pytest.mark.parametrize(
    ("url", "told"),
    [
        (lambda _: f"redis://:s3cret@127.0.0.1:{free_port()}", r"127\.0\.0\.1:\d+ cannot be reached: .*111"),
        (lambda _: "redis://:s3cret@no.such.host.invalid", r"no\.such\.host\.invalid:6379 cannot be reached"),
        (lambda _: "redis+unix://:s3cret@/no/such.sock", r"/no/such\.sock cannot be reached: .*No such file"),
        (lambda _: f"redis+sentinel://127.0.0.1:{free_port()}/main", "no sentinel names a primary.*cannot be reached"),
        (lambda _: f"redis+cluster://127.0.0.1:{free_port()}", "no node of the cluster.*cannot be reached"),
    ],
    ids=["refused", "no such host", "no such socket", "dead sentinel", "dead cluster"],
)
def test_server_that_cannot_be_reached_is_unavailable(
    kind: str, guarded_server: RedisServer, url: Callable[[RedisServer], str], told: str
) -> None:
    with opened(kind, url(guarded_server)) as limiter:
        for call in (
            lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
            lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
            lambda: limiter.adjust("e", "r", {"n": 1}, [TEN]),
        ):
            with pytest.raises(RateLimiterUnavailable, match=told) as caught:
                call()
            assert "s3cret" not in str(caught.value)
        assert limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable="allow").degraded
        assert "s3cret" not in repr(limiter)


@both_kinds
def test_a_node_of_a_cluster_is_not_one_server(kind: str, redis_cluster: RedisCluster) -> None:
    first, second, _ = redis_cluster.servers
    with opened(kind, first.url, namespace=on_server(redis_cluster, second, "namespace")[0]) as limiter:
        for _ in range(2):
            with pytest.raises(StoreRefused, match=r"MOVED.*its URL is redis\+cluster://host:port"):
                limiter.try_acquire("e", "r", {"n": 1}, [TEN])


def is_replica(server: RedisServer) -> bool:
    role = attempt(lambda: server.command("ROLE"))  # just then it closes all connections
    return not isinstance(role, Exception) and role[0] == "slave"


class TestSentinel:
    @both_kinds
    def test_it_names_the_primary(self, kind: str, redis_sentinel: RedisSentinel) -> None:
        with opened(kind, redis_sentinel.url) as limiter:
            check(limiter)

    @both_kinds
    def test_a_service_unknown_to_the_sentinels_is_unavailable(self, kind: str, redis_sentinel: RedisSentinel) -> None:
        url = redis_sentinel.url.replace("/headgate/", "/other/")
        with opened(kind, url) as limiter, pytest.raises(RateLimiterUnavailable, match=r"'other': .* does not know it"):
            limiter.ping()

    def test_calls_go_on_after_a_failover_under_load(self, redis_sentinel: RedisSentinel) -> None:
        with Load("sync", redis_sentinel.url, [WISH]) as threads, Load("async", redis_sentinel.url, [WISH]) as tasks:
            threads.goes_on()
            tasks.goes_on()
            fail_over(redis_sentinel)
            threads.goes_on()
            tasks.goes_on()
        redis_sentinel.wait_until_ok()

    def test_after_a_failover_the_old_primary_says_readonly(self, redis_sentinel: RedisSentinel) -> None:
        """Every call goes to the new one at once, those too that must not be done twice."""
        with ExitStack() as stack:
            limiters = [stack.enter_context(opened(kind, redis_sentinel.url)) for kind in ("sync", "async") * 2]
            for limiter in limiters:
                assert limiter.available("readonly", "r", [TEN]) == {"n": 10}
            old, new = redis_sentinel.primary, fail_over(redis_sentinel)
            eventually(lambda: is_replica(old), "the old primary is a replica")
            for limiter in limiters[:2]:
                assert limiter.try_acquire("readonly", "r", {"n": 1}, [TEN])
            for limiter in limiters[2:]:
                limiter.adjust("readonly", "r", {"n": 1}, [TEN])
            direct = stack.enter_context(opened("sync", new.url))
            assert direct.available("readonly", "r", [TEN]) == {"n": 6}
        redis_sentinel.wait_until_ok()

    def test_the_primary_dies_amid_load(self, redis_sentinel: RedisSentinel) -> None:
        with Load("sync", redis_sentinel.url, [WISH]) as threads, Load("async", redis_sentinel.url, [WISH]) as tasks:
            threads.goes_on()
            tasks.goes_on()
            redis_sentinel.kill_primary()
            threads.gets_no_answer(1)
            tasks.gets_no_answer(1)
            redis_sentinel.wait_for_failover()
            threads.goes_on()
            tasks.goes_on()
        redis_sentinel.replica.start()
        redis_sentinel.wait_until_ok()

    @both_kinds
    def test_a_dead_sentinel_is_passed_over(self, kind: str, redis_sentinel: RedisSentinel) -> None:
        redis_sentinel.sentinels[0].kill()
        try:
            with opened(kind, redis_sentinel.url) as limiter:
                check(limiter)
        finally:
            redis_sentinel.sentinels[0].start()
            redis_sentinel.wait_until_ok()

    @both_kinds
    def test_sentinels_that_hang_are_passed_over(self, kind: str, redis_sentinel: RedisSentinel) -> None:
        """Each may cost a call its time, but then another is asked."""
        hanging = redis_sentinel.sentinels[:2]
        for sentinel in hanging:
            sentinel.pause()
        try:
            with opened(kind, redis_sentinel.url, store_timeout=0.3) as limiter:
                assert patiently(lambda: limiter.try_acquire(*WISH))
        finally:
            for sentinel in hanging:
                sentinel.resume()
            redis_sentinel.wait_until_ok()
