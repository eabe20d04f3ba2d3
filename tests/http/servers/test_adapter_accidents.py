"""Nothing passes by accident: bad costs, rules that cannot be obeyed, and paths with tricks in them, over sockets."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from sites import Site, Sites

CONTROL = ["/limited%0a", "/limited%0A", "/limited%0d", "/limited%00", "/limited%7f", "/limited%09", "/%0alimited"]
CONTROL += ["/users/1%0a", "/users/%00", "/hello%1b", "/no/such/page%0a"]
OTHERS = ["/limited%250a", "/limited%5c", "/limited%255c", "/%5climited", "/limited.", "/limited..;/", "/LIMITED"]
OTHERS += [
    "/limited%20",
    "/limited%e2%80%a8",
    "/limited%3f",
    "/limited%23",
    "/limited%2f%2e%2e%2flimited",
    "/limited%c0%af",
]
OTHERS += ["/limited%ef%bb%bf", "/%25%36climited", "http://other.example/limited", "http://other.example/limited%0a"]


def test_cost_that_is_none_is_refused_and_takes_nothing(site: Site, user: str) -> None:
    for size in ("-1", "-10", "nan", "inf", "1e9", "many", "9" * 30, "9" * 5000):
        reply = site.ask("/batch", user=user, headers={"x-batch-size": size})
        assert reply.status == 400, size
        assert reply.headers["content-type"] == "application/problem+json"
        problem = json.loads(reply.body)
        assert (problem["status"], problem["rule"]) == (400, "batch")
        assert "cost" in problem["detail"]
    sent = [site.ask("/batch", user=user, headers={"x-batch-size": "5"}).status for _ in range(3)]
    assert sent == [200, 200, 429]


def test_rule_without_stored_limits_is_answered_503(site: Site, user: str) -> None:
    for _ in range(3):
        reply = site.ask("/unset", user=user)
        assert (reply.status, reply.headers["content-type"]) == (503, "application/problem+json")
        assert "unset" not in reply.body.decode()
    assert site.ask("/limited", user=user).status == 200


def test_shadow_that_cannot_be_obeyed_takes_no_other_rule_with_it(site: Site, user: str) -> None:
    assert [site.ask("/aside", user=user).status for _ in range(5)] == [200] * 3 + [429] * 2


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_control_character_in_a_path_is_refused_before_it_is_routed(site: Site, user: str, method: str) -> None:
    site.use_up(user)
    statuses = {path: site.ask(path, user=user, method=method).status for path in CONTROL}
    assert statuses == dict.fromkeys(CONTROL, 400)


def test_no_other_spelling_of_a_path_leads_around_its_limit(site: Site, user: str) -> None:
    site.use_up(user)
    statuses = {path: site.ask(path, user=user).status for path in OTHERS}
    assert {path: status for path, status in statuses.items() if status < 400 or status >= 500} == {}


def test_override_of_the_method_is_no_way_around(site: Site, user: str) -> None:
    site.use_up(user)
    for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        for method in ("GET", "POST", "HEAD"):
            assert site.ask("/limited?_method=GET", user=user, method=method, headers={name: "PUT"}).status == 429


def test_body_that_cannot_be_read_counts(sites: Sites, user: str) -> None:
    site = sites["fastapi"]

    def post(body: bytes) -> int:
        with closing(site.connect()) as connection:
            connection.request("POST", "/orders", body, {"Content-Type": "application/json", "X-User": user})
            return connection.getresponse().status

    assert [post(b"{") for _ in range(5)] == [422] * 3 + [429] * 2
    assert post(b'{"size": 1}') == 429
