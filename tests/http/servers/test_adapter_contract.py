"""What holds for every adapter, over sockets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from site_parts import PROXY
from sites import Reply, Site, new_user

PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"
TRICKS = [
    "//limited",
    "/limited/",
    "/limited//",
    "///limited",
    "/%6cimited",
    "/%6Cimited",
    "/limited%2f",
    "/%2flimited",
    "/limited;x=1",
    "/limited%3bx=1",
    "/;x/limited",
    "/x/../limited",
    "/x/%2e%2e/limited",
    "/%2e/limited",
    "/./limited",
    "/limited/.",
    "/limited?",
    "/limited?x=/hello",
    "/limited#x",
    "/limited%00",
    "/limited%ff",
    "/limited%0d%0aX-Evil:%201",
]


def is_refusal(reply: Reply) -> bool:
    return reply.status == 429 and reply.headers["content-type"] == "application/problem+json"


def test_so_many_pass_and_no_more(site: Site, user: str) -> None:
    replies = [site.ask("/limited", user=user) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["ratelimit"].partition(";t=")[0] for reply in replies] == [
        f'"day";r={left}' for left in (2, 1, 0, 0)
    ]
    assert {reply.headers["ratelimit-policy"] for reply in replies} == {'"day";q=3;w=86400'}


def test_a_refusal_says_why_and_for_how_long(site: Site, user: str) -> None:
    site.use_up(user)
    reply = site.ask("/limited", user=user)
    assert is_refusal(reply)
    assert 0 < int(reply.headers["retry-after"]) <= 86400 // 3
    assert int(reply.headers["content-length"]) == len(reply.body)
    problem = json.loads(reply.body)
    assert (problem["type"], problem["status"], problem["violated-policies"]) == (PROBLEM, 429, ["day"])
    assert user not in reply.body.decode()


def test_another_caller_is_not_concerned(site: Site, user: str) -> None:
    site.use_up(user)
    assert site.ask("/limited", user=user).status == 429
    assert site.ask("/limited", user=new_user()).status == 200
    assert site.ask("/hello", user=user).status == 200


def test_at_once_no_more_pass_than_may(site: Site, user: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda _: site.ask("/limited", user=user).status, range(8)))
    assert sorted(statuses) == [200] * 3 + [429] * 5


def test_head_and_post_count_too(site: Site, user: str) -> None:
    assert site.ask("/limited", user=user, method="HEAD").status == 200
    assert site.ask("/limited", user=user, method="POST").status == 200
    assert site.ask("/limited", user=user).status == 200
    refused = site.ask("/limited", user=user, method="HEAD")
    assert (refused.status, refused.body) == (429, b"")
    assert site.ask("/limited", user=user, method="POST").status == 429


def test_several_limits_hold_together(site: Site, user: str) -> None:
    replies = [site.ask("/both", user=user) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 429, 429]
    # What the others would have allowed is not taken for a request that one of them refuses.
    left = [item.split(";")[1] for item in replies[-1].headers["ratelimit"].split(", ")]
    assert sorted(left) == ["r=0", "r=48", "r=98"]
    assert len(json.loads(replies[-1].body)["violated-policies"]) == 1


def test_exempt_paths_and_callers_are_never_limited(site: Site, user: str) -> None:
    assert [site.ask("/exempt", user=user).status for _ in range(3)] == [200] * 3
    replies = [site.ask("/limited", user="vip") for _ in range(5)]
    assert [reply.status for reply in replies] == [200] * 5
    assert "ratelimit" not in replies[0].headers
    # Another spelling may lead elsewhere, and is not exempt.
    assert [site.ask("/exempt/", user=user).status == 429 for _ in range(2)] == [False, True]


def test_an_exemption_does_not_lead_around_a_rule(site: Site, user: str) -> None:
    site.use_up(user)
    for path in ("/exempt/../limited", "/exempt/%2e%2e/limited", "/limited/../exempt/../limited"):
        assert 400 <= site.ask(path, user=user).status < 500, path


def test_parameters_do_not_make_other_buckets(site: Site, user: str) -> None:
    assert [site.ask(f"/users/{id}", user=user).status for id in (1, 2, 3)] == [200, 200, 429]


def test_no_spelling_of_a_path_leads_around_its_limit(site: Site, user: str) -> None:
    site.use_up(user)
    statuses = {path: site.ask(path, user=user).status for path in TRICKS}
    assert {path: status for path, status in statuses.items() if status < 300 or status >= 500} == {}
    if site.name != "fastapi":  # there it is the endpoint that is limited, and most spellings lead to none
        for path in ("//limited", "/limited/", "/%6cimited", "/limited%2f", "/limited;x=1", "/limited%3bx=1"):
            assert statuses[path] == 429, path
        assert statuses["/x/../limited"] == statuses["/x/%2e%2e/limited"] == 400


def test_a_path_that_can_be_read_in_two_ways_takes_nothing(site: Site, user: str) -> None:
    for _ in range(5):
        assert site.ask("/x/../limited", user=user).status in (400, 404)
    site.use_up(user)


@pytest.mark.parametrize("host", ["LOCALHOST", "LocalHost:80", "other.example"])
def test_the_host_makes_no_difference(site: Site, user: str, host: str) -> None:
    site.use_up(user)
    assert site.ask("/limited", user=user, headers={"Host": host}).status == 429


def test_without_a_user_it_is_the_address_that_counts(site: Site) -> None:
    replies = [site.ask("/limited", source="127.0.0.2") for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert site.ask("/limited", source="127.0.0.3").status == 200


def test_only_a_proxy_is_believed_whom_it_forwards(site: Site) -> None:
    def ask(source: str, forwarded: str) -> int:
        return site.ask("/limited", source=source, headers={"X-Forwarded-For": forwarded}).status

    spoofed = [ask("127.0.0.4", f"203.0.113.{number}") for number in range(5)]
    assert spoofed == [200, 200, 200, 429, 429]
    # A client can only prepend to what the proxy says of it.
    forwarded = [ask(PROXY, f"203.0.113.{number}, 198.51.100.1") for number in range(5)]
    assert forwarded == [200, 200, 200, 429, 429]
    assert ask(PROXY, "198.51.100.2") == 200


def test_nothing_that_is_sent_becomes_a_header(site: Site) -> None:
    evil = "%0d%0aX-Evil:%201%0d%0a"
    user = f"{new_user()}{evil}"
    for path in ("/limited", f"/users/{evil}", f"/limited?{evil}", f"/limited%0d%0aX-Evil:%201/{evil}"):
        for _ in range(5):
            reply = site.ask(path, user=user)
            assert reply.status < 500
            assert "x-evil" not in reply.headers
            assert all("evil" not in value.lower() for name, value in reply.headers.items() if name != "location")
    assert site.ask("/limited", user=user).status == 429
    assert site.ask("/limited", user=user.partition("%")[0]).status == 200


def test_a_header_that_is_sent_twice_identifies_nobody(site: Site, user: str) -> None:
    def ask(other: str) -> int:
        return site.ask("/limited", source="127.0.0.5", user=user, headers={"x-user": other}).status

    assert [ask(f"{user}-{number}") for number in range(5)] == [200, 200, 200, 429, 429]  # it is the address
    assert site.ask("/limited", user=user).status == 200
