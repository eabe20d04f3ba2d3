"""What is refused, what is hidden, and what happens without a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy_proxy import TOKEN, Client, descriptor

from headgate import RateLimiter, SyncRateLimiter
from headgate.service.envoy.descriptors import MAX_DESCRIPTORS, MAX_ENTRIES, MAX_NAME_BYTES, MAX_VALUE_BYTES
from headgate.service.envoy.ratelimit_pb2 import RateLimitResponse
from headgate.service.envoy.rules import DescriptorRule
from headgate.testing.servers.process import free_port
from headgate.testing.servers.redis import RedisServer

OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
Serve = Callable[..., Client]
ADDRESS = DescriptorRule("per-address", "edge", {"remote_address": "*"}, "3/minute")
KEY = DescriptorRule("per-key", "edge", {"api_key": "*"}, "5/minute", secret=["api_key"])
ONE, OTHER = descriptor({"remote_address": "10.0.0.1"}), descriptor({"remote_address": "10.0.0.2"})


def overall(client: Client, *asked: Any, times: int = 4) -> list[int]:
    return [client.ask(*asked).overall_code for _ in range(times)]


LONG = b"x" * (MAX_VALUE_BYTES + 1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"domain": ""}, "domain must not be empty"),
        ({"domain": "x" * (MAX_NAME_BYTES + 1)}, "domain has 1025 bytes"),
        ({"descriptors": []}, "1 to 64 descriptors, not 0"),
        ({"descriptors": [ONE] * (MAX_DESCRIPTORS + 1)}, "1 to 64 descriptors, not 65"),
        ({"descriptors": [ONE, {}]}, r"descriptors\[1\] must have 1 to 32 entries, not 0"),
        ({"descriptors": [{"entries": [{"key": "k"}] * (MAX_ENTRIES + 1)}]}, "1 to 32 entries, not 33"),
        (
            {"descriptors": [ONE, {"entries": [{"value": b"x"}]}]},
            r"descriptors\[1\].entries\[0\].key must not be empty",
        ),
        (
            {"descriptors": [ONE, descriptor({"remote_address": LONG})]},
            "value has 65537 bytes, and the maximum is 65536",
        ),
        ({"descriptors": [ONE, {**ONE, "limit": {"requests_per_unit": 1}}]}, r"\.limit\.unit must be SECOND"),
        ({"descriptors": [ONE, {**ONE, "limit": {"requests_per_unit": 1, "unit": 8}}]}, "YEAR, not 8"),
    ],
)
def test_invalid_request_is_refused_and_takes_nothing(serve: Serve, fields: dict[str, Any], why: str) -> None:
    client = serve(ADDRESS)
    with pytest.raises(grpc.RpcError, match=why) as caught:
        client.ask(ONE, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert client.ask(ONE).statuses[0].limit_remaining == 2  # nothing was taken before


def test_any_bytes_are_a_value(serve: Serve) -> None:
    client = serve(ADDRESS)
    for value in (b"\xff\xfe", b"", b"\0", b"x" * MAX_VALUE_BYTES, "ü".encode()):
        asked = descriptor({"remote_address": value})
        assert overall(client, asked) == [OK, OK, OK, OVER_LIMIT]


def test_a_token_is_needed(serve: Serve) -> None:
    client = serve(ADDRESS, open_to_all=False)
    for value in (None, f"Basic {TOKEN}", TOKEN, "Bearer wrong", "Bearer"):
        with pytest.raises(grpc.RpcError) as caught:
            client.ask(ONE, metadata=() if value is None else [("authorization", value)])
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert TOKEN not in caught.value.details()
    for scheme in ("Bearer", "bearer"):
        assert client.ask(ONE, metadata=[("authorization", f"{scheme} {TOKEN}")]).overall_code == OK


def test_store_that_is_away_is_unavailable_to_envoy(serve: Serve) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    look = {**OTHER, "hits_addend": {"value": 0}}
    for asked in ([ONE], [ONE, OTHER], [look]):
        with pytest.raises(grpc.RpcError, match="the store of the limits is unavailable") as caught:
            serve(ADDRESS, url=away).ask(*asked)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    allowing = serve(ADDRESS, url=away, on_unavailable="allow")
    for asked in ([ONE], [ONE, OTHER], [look]):
        passed = allowing.ask(*asked)
        assert passed.overall_code == OK
        assert not passed.statuses[0].HasField("current_limit")
    here = serve(ADDRESS, url=away, on_unavailable="local")
    assert overall(here, ONE) == [OK, OK, OK, OVER_LIMIT]


def test_store_that_rejects_the_service_lets_nothing_pass(serve: Serve, redis_server: RedisServer) -> None:
    look = {**OTHER, "hits_addend": {"value": 0}}
    for policy in ("block", "allow", "local"):
        client = serve(ADDRESS, url=redis_server.url.replace("/0", "/16"), on_unavailable=policy)
        for asked in ([ONE], [ONE, OTHER], [look]):
            with pytest.raises(grpc.RpcError, match="the store rejects the service") as caught:
                client.ask(*asked)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_namespace_that_is_deleted(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    with SyncRateLimiter(url) as limiter:
        limiter.register_namespace("blue")
        limiter.delete_namespace("blue")
    with pytest.raises(grpc.RpcError, match="namespace 'blue' is deleted") as caught:
        serve(ADDRESS, url=url, namespace="blue").ask(ONE)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "Traceback" not in caplog.text, "for every request there would be one"


def test_what_is_wrong_with_the_service_itself_is_not_told(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RateLimiter):
        async def try_acquire(self, *arguments: Any, **named: Any) -> Any:
            raise RuntimeError("secret inner workings")

    client = serve(ADDRESS, kind=Broken)
    with pytest.raises(grpc.RpcError, match="the decision failed") as caught:
        client.ask(ONE)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "secret inner workings" in caplog.text


@pytest.mark.parametrize("hash_entity_ids", [False, True])
def test_secrets_are_nowhere_in_the_store(serve: Serve, redis_server: RedisServer, hash_entity_ids: bool) -> None:
    namespace = f"secrets-{hash_entity_ids}"
    client = serve(ADDRESS, KEY, url=redis_server.url, namespace=namespace, hash_entity_ids=hash_entity_ids)
    own = descriptor({"path": "/", "api_key": "s3cret"}, limit={"requests_per_unit": 9, "unit": 1})
    passed = client.ask(ONE, OTHER, descriptor({"api_key": "s3cret"}), own)
    assert [status.limit_remaining for status in passed.statuses] == [2, 2, 4, 8]
    with redis_server.client() as redis:
        keys = [key for key in redis.scan_iter() if namespace in key]
    assert len(keys) == 4
    assert not any("s3cret" in key for key in keys)
    assert any("10.0.0.1" in key for key in keys) == (not hash_entity_ids)


def test_corrupt_state_is_an_error_of_its_own_question(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    client = serve(ADDRESS, url=f"sqlite:///{path}", on_unavailable="allow")
    client.ask(ONE)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("UPDATE buckets SET period_ms = 0").rowcount == 1
    with pytest.raises(grpc.RpcError, match="corrupt") as caught:
        client.ask(ONE)
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    assert client.ask(OTHER).overall_code == OK
