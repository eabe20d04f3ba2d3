"""What the service answers, asked over a socket as Envoy asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from envoy_proxy import Client, Loop, Service, descriptor
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import Limit, RateLimiter
from headgate.service.envoy.descriptors import UNITS
from headgate.service.envoy.ratelimit_pb2 import RateLimitResponse
from headgate.service.envoy.rules import DescriptorRule, DescriptorRules
from headgate.testing import ManualClock
from headgate.testing.servers.redis import RedisServer

OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
Serve = Callable[..., Client]
ADDRESS = DescriptorRule("per-address", "edge", {"remote_address": "*"}, "3/minute")
LOGIN = DescriptorRule("login", "edge", {"path": "/login", "remote_address": "*"}, "2/minute")
KEY = DescriptorRule("per-key", "edge", {"api_key": "*"}, ["5/second", "6/hour"], secret=["api_key"], cost=2)
ONE, OTHER = descriptor({"remote_address": "10.0.0.1"}), descriptor({"remote_address": "10.0.0.2"})


def codes(response: RateLimitResponse) -> list[int]:
    return [response.overall_code, *(status.code for status in response.statuses)]


def headers(response: RateLimitResponse) -> dict[str, str]:
    return {header.key.lower(): header.value for header in response.response_headers_to_add}


def test_as_many_as_the_limit_allows(serve: Serve, clock: ManualClock) -> None:
    client = serve(ADDRESS)
    for left in (2, 1, 0):
        passed = client.ask(ONE)
        (status,) = passed.statuses
        assert (passed.overall_code, status.code, status.limit_remaining) == (OK, OK, left)
        assert headers(passed) == {
            "ratelimit-policy": '"minute";q=3;w=60',
            "ratelimit": f'"minute";r={left};t={20 * (3 - left)}',
        }
        assert passed.raw_body == b""
    refused = client.ask(ONE)
    (status,) = refused.statuses
    assert codes(refused) == [OVER_LIMIT, OVER_LIMIT]
    limit = status.current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (3, UNITS["MINUTE"], "per-address:minute")
    assert (status.limit_remaining, status.duration_until_reset.seconds) == (0, 20)
    assert headers(refused)["retry-after"] == "20"
    assert headers(refused)["content-type"] == "application/problem+json"
    assert b"quota-exceeded" in refused.raw_body
    assert codes(client.ask(OTHER)) == [OK, OK]
    clock.advance(20)
    assert codes(client.ask(ONE)) == [OK, OK]


def test_a_quota_is_told_with_its_edge(serve: Serve, clock: ManualClock) -> None:
    client = serve(DescriptorRule("daily", "edge", {"remote_address": "*"}, "2/day resets 06:30 UTC"))
    day_ms = 86_400_000
    left_ms = day_ms - (clock.now_ms() - 23_400_000) % day_ms
    clock.advance(left_ms / 1000 - 100)
    looks = descriptor({"remote_address": "10.0.0.1"}, hits_addend={"value": 0})
    for code, left, asked in [(OK, 2, looks), (OK, 1, ONE), (OK, 0, ONE), (OVER_LIMIT, 0, ONE), (OVER_LIMIT, 0, looks)]:
        answer = client.ask(asked)
        (status,) = answer.statuses
        assert codes(answer) == [code, code]
        limit = status.current_limit
        assert (limit.requests_per_unit, limit.unit, limit.name) == (2, UNITS["DAY"], "daily:quota-day")
        assert (status.limit_remaining, status.duration_until_reset.seconds) == (left, 100)
    assert headers(answer)["ratelimit"] == '"quota-day";r=0;t=100'
    clock.advance(100)
    assert codes(client.ask(ONE)) == [OK, OK]


def test_one_refused_descriptor_refuses_all_and_nothing_is_taken(serve: Serve) -> None:
    client = serve(ADDRESS, LOGIN)
    login = descriptor({"path": "/login", "remote_address": "10.0.0.1"})
    assert codes(client.ask(ONE, login)) == [OK, OK, OK]
    assert codes(client.ask(login)) == [OK, OK]
    for _ in range(3):
        refused = client.ask(ONE, login)
        assert codes(refused) == [OVER_LIMIT, OK, OVER_LIMIT]
        assert [status.limit_remaining for status in refused.statuses] == [2, 0]
    assert codes(client.ask(ONE)) == [OK, OK]


def test_the_same_bucket_twice_adds_up(serve: Serve) -> None:
    client = serve(ADDRESS)
    assert codes(client.ask(ONE, ONE, ONE, ONE)) == [OVER_LIMIT] + [OVER_LIMIT] * 4
    passed = client.ask(ONE, ONE)
    assert codes(passed) == [OK, OK, OK]
    assert [status.limit_remaining for status in passed.statuses] == [1, 1]


def test_what_no_rule_is_for_is_not_limited(serve: Serve) -> None:
    client = serve(ADDRESS)
    for fields in ({"domain": "other"}, {}):
        response = client.ask(ONE if fields else descriptor({"path": "/"}), **fields)
        assert codes(response) == [OK, OK]
        assert not response.statuses[0].HasField("current_limit")
        assert not response.response_headers_to_add


def test_hits_addend_is_what_a_request_takes(serve: Serve) -> None:
    client = serve(ADDRESS)
    assert client.ask(ONE, hits_addend=2).statuses[0].limit_remaining == 1
    assert codes(client.ask(ONE, hits_addend=2)) == [OVER_LIMIT, OVER_LIMIT]
    assert client.ask(ONE, hits_addend=0).statuses[0].limit_remaining == 0  # not set, which is one
    own = {**OTHER, "hits_addend": {"value": 2}}
    assert client.ask(own, hits_addend=3).statuses[0].limit_remaining == 1
    for hits in (2**32, 2**64 - 1):
        assert codes(client.ask({**OTHER, "hits_addend": {"value": hits}})) == [OVER_LIMIT, OVER_LIMIT]


def test_cost_is_taken_for_every_hit_from_every_limit(serve: Serve) -> None:
    client = serve(KEY)
    asked = descriptor({"api_key": "s3cret"})
    assert client.ask(asked).statuses[0].limit_remaining == 3
    refused = client.ask(asked, hits_addend=2)
    assert refused.statuses[0].current_limit.name == "per-key:second"
    assert codes(refused) == [OVER_LIMIT, OVER_LIMIT]
    assert client.ask(asked).statuses[0].limit_remaining == 1


def test_no_hits_only_look(serve: Serve, clock: ManualClock) -> None:
    client = serve(ADDRESS, LOGIN)
    look = {**ONE, "hits_addend": {"value": 0}}
    login = descriptor({"path": "/login", "remote_address": "10.0.0.1"})
    for _ in range(5):
        seen = client.ask(look)
        assert (codes(seen), seen.statuses[0].limit_remaining) == ([OK, OK], 3)
    assert codes(client.ask(ONE, hits_addend=3)) == [OK, OK]
    refused = client.ask(look, login)
    assert codes(refused) == [OVER_LIMIT, OVER_LIMIT, OK]
    assert refused.statuses[0].duration_until_reset.seconds == 20
    assert refused.statuses[1].limit_remaining == 2  # nothing was taken
    assert headers(refused)["retry-after"] == "20"
    clock.advance(20)
    assert codes(client.ask(look, login)) == [OK, OK, OK]


def test_what_was_used_is_counted_whatever_is_left(serve: Serve, clock: ManualClock) -> None:
    client = serve(DescriptorRule("tokens", "edge", {"user": "*"}, "1000/minute", debt=True), ADDRESS)
    user = {"user": "bob"}
    look, used = descriptor(user, hits_addend={"value": 0}), descriptor(user, hits_addend={"value": 700})
    for left in (300, 0):
        assert codes(client.ask(look)) == [OK, OK]
        counted = client.ask(used)
        assert (codes(counted), counted.statuses[0].limit_remaining) == ([OK, OK], left)
    refused = client.ask(look)
    assert codes(refused) == [OVER_LIMIT, OVER_LIMIT]
    assert refused.statuses[0].duration_until_reset.seconds == 25  # 401 tokens, and 1000 come in a minute
    assert codes(client.ask(used, {**ONE, "hits_addend": {"value": 4}})) == [OVER_LIMIT, OK, OVER_LIMIT]
    clock.advance(25)
    assert codes(client.ask(look)) == [OK, OK]  # what was refused did not count


DAY = 86_400
SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": DAY, "WEEK": 7 * DAY, "MONTH": 30 * DAY, "YEAR": 365 * DAY}


@pytest.mark.parametrize("unit", UNITS)
def test_a_limit_that_the_descriptor_brings(serve: Serve, clock: ManualClock, unit: str) -> None:
    client = serve(ADDRESS)
    own = {**ONE, "limit": {"requests_per_unit": 2, "unit": UNITS[unit]}}
    assert [codes(client.ask(own))[0] for _ in range(3)] == [OK, OK, OVER_LIMIT]
    limit = client.ask(own).statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit) == (2, UNITS[unit])
    assert limit.name == f"per-address:own-2-{unit.lower()}"
    clock.advance(SECONDS[unit] / 2 - 0.001)
    assert codes(client.ask(own)) == [OVER_LIMIT, OVER_LIMIT]
    clock.advance(0.001)
    assert codes(client.ask(own)) == [OK, OK]


def test_limits_that_alternate_give_nothing_away(serve: Serve) -> None:
    client = serve(ADDRESS)
    small, large = ({**ONE, "limit": {"requests_per_unit": count, "unit": 3}} for count in (1, 10))
    passed = Counter(
        count for _ in range(20) for count, own in [(1, small), (10, large)] if codes(client.ask(own))[0] == OK
    )
    assert passed == {1: 1, 10: 10}
    assert client.ask(ONE).statuses[0].limit_remaining == 2


def test_a_limit_of_nothing_and_one_without_a_rule(serve: Serve) -> None:
    client = serve(DescriptorRule("cheap", "edge", {"user": "*"}, "10/minute", cost=0.001))
    for unit in UNITS.values():
        for match in ({"user": "bob"}, {"path": "/", "user": "bob"}):
            refused = client.ask(descriptor(match, limit={"requests_per_unit": 0, "unit": unit}))
            assert codes(refused) == [OVER_LIMIT, OVER_LIMIT]
            status = refused.statuses[0]
            assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (0, unit)
            assert not status.HasField("duration_until_reset")
    own = [
        descriptor({"path": "/", "user": user}, limit={"requests_per_unit": 1, "unit": 2}) for user in ("eve", "bob")
    ]
    passed = client.ask(*own)
    assert codes(passed) == [OK, OK, OK]
    assert passed.statuses[0].current_limit.name == "edge/path/user:own-1-minute"
    assert codes(client.ask(own[0])) == [OVER_LIMIT, OVER_LIMIT]


def test_a_shadow_counts_and_reports_and_never_refuses(serve: Serve) -> None:
    told: list[Any] = []
    stricter = DescriptorRule("stricter", "edge", {"remote_address": "*"}, "1/hour", shadow=True, priority=1)
    alone = DescriptorRule("alone", "edge", {"user": "*"}, "1/hour", shadow=True)
    client = serve(ADDRESS, stricter, alone, on_event=told.append)
    user = descriptor({"user": "bob"})
    for left in (2, 1, 0):
        passed = client.ask(ONE, user)
        assert codes(passed) == [OK, OK, OK]
        assert [status.limit_remaining for status in passed.statuses] == [left, 0]
        assert "hour" not in headers(passed)["ratelimit"]
    assert passed.statuses[1].current_limit.name == "alone:hour"
    assert codes(client.ask(ONE, user)) == [OVER_LIMIT, OVER_LIMIT, OK]
    assert Counter(event.fields["rule"] for event in told if event.name == "shadow.refused") == {
        "stricter": 3,
        "alone": 3,
    }


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ([], set()),
        (["x-ratelimit"], {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}),
        (["retry-after"], {"retry-after"}),
    ],
)
def test_the_headers_that_are_wanted(serve: Serve, kinds: list[str], names: set[str]) -> None:
    client = serve(ADDRESS, headers=kinds)
    assert headers(client.ask(ONE, hits_addend=3)).keys() == names - {"retry-after"}
    assert headers(client.ask(ONE)).keys() == names | {"content-type", "cache-control"}


RULES = [ADDRESS, LOGIN, KEY]
DESCRIPTORS = [
    ({"remote_address": "1"}, {"per-address:minute": 3}, 1),
    ({"remote_address": "2"}, {"per-address:minute": 3}, 1),
    ({"path": "/login", "remote_address": "1"}, {"login:minute": 2}, 1),
    ({"api_key": "k"}, {"per-key:second": 5, "per-key:hour": 6}, 2),
    ({"path": "/"}, {}, 1),
]
ASKED = st.lists(st.tuples(st.sampled_from(DESCRIPTORS), st.integers(1, 3)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(ASKED, max_size=8))
def test_request_takes_of_all_its_descriptors_or_of_none(shared: tuple[Service, Client], requests: list[Any]) -> None:
    """Against a count by hand, the clock standing still."""
    service, client = shared
    service.use(lambda: RateLimiter("memory://", clock=ManualClock()))
    used: Counter[str] = Counter()
    for asked in requests:
        wanted: Counter[str] = Counter()
        most: dict[str, int] = {}
        for (entries, limits, cost), hits in asked:
            for name, capacity in limits.items():
                wanted[f"{entries}{name}"] += hits * cost
                most[f"{entries}{name}"] = capacity
        over = {bucket for bucket in wanted if used[bucket] + wanted[bucket] > most[bucket]}
        if not over:
            used += wanted
        response = client.ask(*(descriptor(entries, hits_addend={"value": hits}) for (entries, _, _), hits in asked))
        assert response.overall_code == (OVER_LIMIT if over else OK)
        assert len(response.statuses) == len(asked)
        for ((entries, limits, _), _), status in zip(asked, response.statuses):
            assert (status.code == OVER_LIMIT) == any(f"{entries}{name}" in over for name in limits)
            if limits:
                name = status.current_limit.name
                assert status.limit_remaining == limits[name] - used[f"{entries}{name}"]


@pytest.fixture(scope="module")
def shared(loop: Loop) -> Any:
    service = Service(loop, DescriptorRules(RULES))
    client = Client(service.port)
    yield service, client
    client.close()
    service.close()


def test_two_services_share_what_is_in_redis(serve: Serve, redis_server: RedisServer) -> None:
    clients = [serve(ADDRESS, LOGIN, url=redis_server.url, namespace="envoy") for _ in range(2)]
    login = descriptor({"path": "/login", "remote_address": "10.0.0.1"})
    assert [codes(client.ask(ONE, login))[0] for client in clients] == [OK, OK]
    for client in clients:
        refused = client.ask(ONE, login)
        assert codes(refused) == [OVER_LIMIT, OK, OVER_LIMIT]
        assert [status.limit_remaining for status in refused.statuses] == [1, 0]


def test_requests_that_wait_for_the_store_share_its_calls(serve: Serve, own_redis_server: RedisServer) -> None:
    """The store takes long, here because it is paused. What comes meanwhile leaves together."""
    client = serve(ADDRESS, LOGIN, url=own_redis_server.url, namespace="envoy", store_timeout=20)
    assert client.ask(OTHER).overall_code == OK
    with redis.Redis.from_url(own_redis_server.url) as operator:
        before = _scripts_run(operator)
        operator.execute_command("CLIENT", "PAUSE", 3000, "WRITE")
        answers = client.ask_at_once(1000, ONE, descriptor({"path": "/login", "remote_address": "10.0.0.1"}))()
        assert Counter(codes(answer)[0] for answer in answers) == {OK: 2, OVER_LIMIT: 998}
        assert (
            _scripts_run(operator) - before <= 100
        )  # two, and more where the machine is so slow that some come after the pause


def _scripts_run(operator: Any) -> int:
    return int(operator.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@settings(deadline=None)
@given(
    capacity=st.integers(1, 10**12),
    refill_milli=st.integers(1, 10**15),
    period_ms=st.integers(1, 366 * 86_400_000),
    hits=st.sampled_from([1, 2, 2**32 - 1]),
)
@example(capacity=10**12, refill_milli=1, period_ms=366 * 86_400_000, hits=2**32 - 1)
def test_every_limit_has_an_answer_that_envoy_can_read(
    shared_far: tuple[Service, Client], capacity: int, refill_milli: int, period_ms: int, hits: int
) -> None:
    """A reset may be further away than a protobuf Duration reaches. An error instead would let the request pass."""
    service, client = shared_far
    limit = Limit.from_stored("far", capacity * 1000, refill_milli, period_ms)
    with service.under(DescriptorRule("far", "edge", {"remote_address": "*"}, [limit])):
        service.use(lambda: RateLimiter("memory://", clock=ManualClock()))
        for _ in range(3):
            (status,) = client.ask(ONE, hits_addend=hits).statuses
            assert 0 <= status.duration_until_reset.seconds <= 315_576_000_000


@pytest.fixture(scope="module")
def shared_far(loop: Loop) -> Any:
    service = Service(loop, DescriptorRules())
    client = Client(service.port)
    yield service, client
    client.close()
    service.close()


def test_reset_beyond_a_duration_is_the_longest_duration(serve: Serve) -> None:
    limit = Limit.from_stored("far", 10**15, 1, 366 * 86_400_000)
    client = serve(DescriptorRule("far", "edge", {"remote_address": "*"}, [limit]))
    (status,) = client.ask(ONE, hits_addend=2**32 - 1).statuses
    assert (status.code, status.duration_until_reset.seconds) == (OK, 315_576_000_000)
