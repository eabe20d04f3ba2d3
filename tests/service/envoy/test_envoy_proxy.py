"""The real Envoy, with the configuration of the guide, in front of a real upstream."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from envoy_proxy import EnvoyProxy, Service, Upstream

from headgate import RateLimiter
from headgate.service.envoy.rules import DescriptorRule
from headgate.testing import ManualClock
from headgate.testing.servers.process import eventually


def test_as_many_pass_as_the_limit_allows(envoy: EnvoyProxy, upstream: Upstream, clock: ManualClock) -> None:
    served = upstream.served
    for left in (4, 3, 2, 1, 0):
        passed = envoy.get("/login")
        assert (passed.status, passed.body) == (200, b"hello")
        assert f'"login:minute";r={left};' in passed.headers["ratelimit"]
    for _ in range(3):
        refused = envoy.get("/login")
        assert refused.status == 429
    assert upstream.served == served + 5
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == "12"
    assert refused.headers["ratelimit-policy"] == '"login:minute";q=5;w=60, "per-address:minute";q=20;w=120'
    assert (
        refused.headers["ratelimit"] == '"login:minute";r=0;t=12, "per-address:minute";r=15;t=30'
    )  # 15: all or nothing
    assert refused.problem["title"] == "Quota exceeded"
    assert refused.problem["violated-policies"] == ["login:minute"]
    assert envoy.get("/other").status == 200
    clock.advance(12)
    assert [envoy.get("/login").status for _ in range(2)] == [200, 429]


def test_a_path_written_otherwise_is_the_same_path(envoy: EnvoyProxy) -> None:
    paths = ["/login?a=1", "//login", "/x/../login", "/./login", "/login", "/login?b", "//login?c", "/%6Cogin"]
    assert [envoy.get(path).status for path in paths] == [200] * 5 + [429] * 3


@pytest.mark.parametrize("key", ["\xff\xfe", "k" * 50_000, "key of bob"])
def test_no_header_is_a_way_around(envoy: EnvoyProxy, key: str) -> None:
    assert [envoy.get("/", {"x-api-key": key}).status for _ in range(12)] == [200] * 10 + [429] * 2
    assert envoy.get("/", {"x-api-key": "another"}).status == 200


def test_a_limit_from_the_metadata_of_the_request(envoy: EnvoyProxy) -> None:
    assert [envoy.get("/plan", {"x-user": "bob"}).status for _ in range(4)] == [200, 200, 200, 429]
    assert envoy.get("/plan", {"x-user": "eve"}).headers["ratelimit-policy"] == '"own-3-hour";q=3;w=3600'


def test_what_the_answer_says_was_used(envoy: EnvoyProxy, service: Service, clock: ManualClock) -> None:
    for left in (300, -400):
        assert envoy.get("/chat", {"x-user": "bob"}).status == 200
        eventually(partial(_is_left, service, left), "Envoy has told what was used")
    refused = envoy.get("/chat", {"x-user": "bob"})
    assert (refused.status, refused.headers["retry-after"]) == (429, "25")
    clock.advance(25)
    assert envoy.get("/chat", {"x-user": "bob"}).status == 200


def _is_left(service: Service, tokens: int) -> bool:
    rule = DescriptorRule("tokens", "edge", {"llm_user": "*"}, "1000/minute")
    return service.available(rule, "llm_user:bob") == {"minute": tokens}


def test_a_shadow_refuses_nobody(envoy: EnvoyProxy, service: Service, clock: ManualClock) -> None:
    told: list[Any] = []
    service.use(lambda: RateLimiter("memory://", clock=clock, on_event=told.append))
    answers = [envoy.get() for _ in range(21)]
    assert [answer.status for answer in answers] == [200] * 20 + [429]
    assert not any("hour" in answer.headers["ratelimit"] for answer in answers)
    assert [event.fields["rule"] for event in told if event.name == "shadow.refused"] == ["stricter"] * 20


def test_the_service_goes_and_comes_back(envoy: EnvoyProxy, service: Service) -> None:
    assert [envoy.get("/login", deny=deny).status for deny in (False, True, False, True)] == [200] * 4
    service.stop()
    try:
        assert [envoy.get("/login").status for _ in range(8)] == [200] * 8
        assert [envoy.get("/login", deny=True).status for _ in range(8)] == [503] * 8
    finally:
        service.start()
    eventually(lambda: envoy.get("/", deny=True).status == 200, "Envoy asks again")
    assert [envoy.get("/login", deny=deny).status for deny in (True, False, True)] == [200, 429, 429]


def test_the_store_goes_and_comes_back(envoy: EnvoyProxy, service: Service) -> None:
    service.use(lambda: RateLimiter("redis://127.0.0.1:1/0"))
    assert [envoy.get(deny=deny).status for deny in (False, True)] == [200, 503]
    service.use(lambda: RateLimiter("memory://"))
    assert [envoy.get(deny=deny).status for deny in (False, True)] == [200, 200]


def test_without_its_token_envoy_gets_no_answer(envoy: EnvoyProxy, service: Service) -> None:
    service.token = "changed"
    try:
        assert [envoy.get(deny=deny).status for deny in (False, True)] == [200, 503]
    finally:
        service.token = "the-token-of-this-envoy"
    assert envoy.get(deny=True).status == 200


@pytest.mark.parametrize("count", [1000, 3000])
def test_requests_at_once_pass_no_more_than_the_limit_allows(envoy: EnvoyProxy, service: Service, count: int) -> None:
    """With the settings of the guide, unchanged. A 503 is right where the machine is too slow for their timeout."""
    rule = DescriptorRule("per-key", "edge", {"api_key": "*"}, "3/hour", secret=["api_key"])
    with service.under(rule):
        for key in ("first", "second"):
            statuses = envoy.get_at_once(count, {"x-api-key": key})
            assert statuses.keys() <= {200, 429, 503}
            assert statuses[200] == 3 or (statuses[200] < 3 and statuses[503]), statuses
            assert statuses.total() == count
