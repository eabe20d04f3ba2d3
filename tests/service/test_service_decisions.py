"""Decisions and leases over HTTP: what the limiter says, in JSON."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_process import Api, ServeProcess

from headgate.testing.servers.process import eventually

WEEK = "spend=10/week"
SLOTS = "parallel=2 concurrent ttl 30s"
numbers = itertools.count()


def ask(entity: str, *limits: str, **more: object) -> dict[str, object]:
    return {"entity_id": entity, "resource": "r", "limits": list(limits or [WEEK]), **more}


def test_a_refusal_is_an_answer(api: Api, entity: str) -> None:
    first = api.post("/v1/acquire", ask(entity, consume={"spend": 7.5}))
    assert first["allowed"]
    assert first["lease_id"] is None
    second = api.post("/v1/acquire", ask(entity, consume={"spend": 7.5}))
    assert not second["allowed"]
    assert 0 < second["retry_after_seconds"] < 7 * 86400
    (limit,) = second["limits"]
    assert limit == {
        "entity_id": entity,
        "resource": "r",
        "limit_name": "spend",
        "capacity": 10,
        "refill_amount": 10,
        "refill_period_seconds": 604800,
        "available": 2,
        "requested": 7.5,
        "exceeded": True,
        "retry_after_seconds": second["retry_after_seconds"],
    }
    never = api.post("/v1/acquire", ask(entity, consume={"spend": 11}))
    assert (never["allowed"], never["retry_after_seconds"]) == (False, None)


def test_nothing_passes_unless_the_limit_is_in_debt(api: Api, entity: str) -> None:
    nothing = ask(entity, consume={"spend": 0})
    lease = api.post("/v1/acquire", nothing | {"lease": {}})
    assert lease["allowed"]
    adjusted = api.post(f"/v1/leases/{lease['lease_id']}/adjust", {"amounts": {"spend": 11}})
    assert adjusted == {"consumed": {"spend": 11}}
    assert not api.post("/v1/acquire", nothing)["allowed"]
    batch = api.post("/v1/acquire/batch", {"asks": [nothing, ask(f"{entity}-2", consume={"spend": 0})]})
    assert [one["allowed"] for one in batch["decisions"]] == [False, True]


def test_limits_that_alternate_pass_what_the_larger_allows(api: Api, entity: str) -> None:
    pair = ("spend=10/week", "spend=20/week")
    passed = [api.post("/v1/acquire", ask(entity, limits))["allowed"] for _ in range(60) for limits in pair]
    assert sum(passed) == 20


def test_one_of_each_and_limits_as_objects(api: Api, entity: str) -> None:
    forms = [
        {"name": "spend", "capacity": 3, "refill_amount": 3, "refill_period_seconds": 604800},
        {"name": "parallel", "slots": 2, "ttl_seconds": 30},
    ]
    found = api.post("/v1/acquire", {"entity_id": entity, "resource": "r", "limits": forms})
    assert {limit["limit_name"]: limit["available"] for limit in found["limits"]} == {"spend": 2, "parallel": 1}
    assert found["lease_id"]


def test_lease_for_tokens_is_renewed_adjusted_and_released(api: Api, entity: str) -> None:
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": [WEEK]})
    lease = api.post("/v1/acquire", {"entity_id": entity, "resource": "r", "consume": {"spend": 6}, "lease": {}})
    at = f"/v1/leases/{lease['lease_id']}"
    assert api.post(f"{at}/renew", {}) == {"ttl_seconds": 60}
    assert api.post(f"{at}/adjust", {"amounts": {"spend": 2}}) == {"consumed": {"spend": 8}}
    assert api.available(entity) == {"spend": 2}
    assert api.post(f"{at}/release", {"amounts": {"spend": 3}}) == {"consumed": {"spend": 5}}
    assert api.post(f"{at}/release", {"rollback": True}) == {"consumed": {"spend": 0}}
    assert api.available(entity) == {"spend": 10}
    for what, body in (("renew", {}), ("release", {}), ("adjust", {"amounts": {"spend": 1}})):
        gone = api.post(f"{at}/{what}", body, status=410)
        assert lease["lease_id"] in gone["detail"]
    assert api.available(entity) == {"spend": 10}


def test_slots_come_with_a_lease_that_nobody_asked_for(api: Api, entity: str) -> None:
    taken = [api.post("/v1/acquire", ask(entity, SLOTS))["lease_id"] for _ in range(3)]
    assert [bool(lease_id) for lease_id in taken] == [True, True, False]
    assert api.post(f"/v1/leases/{taken[0]}/renew", {}) == {"ttl_seconds": 30}
    assert api.post(f"/v1/leases/{taken[0]}/release", {}) == {"consumed": {"parallel": 0}}
    assert api.post("/v1/acquire", ask(entity, SLOTS))["allowed"]
    assert not api.post("/v1/acquire", ask(entity, SLOTS))["allowed"]


def test_slots_of_an_ancestor_alone_need_a_lease_that_was_asked_for(api: Api, entity: str) -> None:
    api.post("/v1/entities", {"entity_id": f"{entity}-above"}, status=201)
    api.post("/v1/entities", {"entity_id": entity, "parent_id": f"{entity}-above", "cascade": True}, status=201)
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=10/week"]})
    api("PUT", f"/v1/limits/entities/{entity}-above", {"limits": ["n=2 concurrent"]})
    wish = {"entity_id": entity, "resource": "r"}
    assert "lease" in api.post("/v1/acquire", wish, status=422)["detail"]
    assert api.available(entity) == {"n": 2}
    lease_id = api.post("/v1/acquire", wish | {"lease": {"ttl_seconds": 5}})["lease_id"]
    assert api.post(f"/v1/leases/{lease_id}/renew", {}) == {"ttl_seconds": 5}
    assert api.available(entity) == {"n": 1}


def test_acquire_with_max_wait_waits_and_else_is_refused(api: Api, service: ServeProcess, entity: str) -> None:
    fast = "n=20/second burst 1"
    for _ in range(3):
        waited = api.post("/v1/acquire", ask(entity, fast, max_wait=5))
        assert waited["allowed"]
    refused = api.post("/v1/acquire", ask(entity, "n=1/week", max_wait=0.01, consume={"n": 1}))
    assert not refused["allowed"]


def test_whoever_goes_while_waiting_gives_back(api: Api, service: ServeProcess, entity: str) -> None:
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=1/minute"]})
    wish = {"entity_id": entity, "resource": "r"}
    assert api.post("/v1/acquire", wish)["allowed"]
    with pytest.raises(httpx.ReadTimeout):
        api.http.post("/v1/acquire", json=wish | {"max_wait": 60}, timeout=0.5)
    eventually(lambda: api.available(entity)["n"] >= 0, "what was reserved is given back")


elements = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.integers(1, 6)),
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=6,
)


class TestBatches:
    @settings(max_examples=12, deadline=None)
    @given(elements=elements)
    def test_as_one_after_the_other(self, api: Api, elements: list[object]) -> None:
        run = f"batch{next(numbers)}"

        def form(way: str, element: object) -> object:
            if isinstance(element, list):
                return [form(way, one) for one in element]
            assert isinstance(element, tuple)
            return ask(f"{run}-{way}-{element[0]}", consume={"spend": element[1]})

        def said(decision: Any) -> object:
            limits = [(limit["limit_name"], limit["available"], limit["exceeded"]) for limit in decision["limits"]]
            return decision["allowed"], decision["degraded"], limits

        def batch(way: str, *elements: object, statuses: bool = True) -> list[Any]:
            body = {"asks": [form(way, one) for one in elements]} | ({"statuses": True} if statuses else {})
            decisions: list[Any] = api.post("/v1/acquire/batch", body)["decisions"]
            return decisions

        together = batch("together", *elements)
        compact = batch("compact", *elements, statuses=False)
        apart = [
            batch("apart", one)[0] if isinstance(one, list) else api.post("/v1/acquire", form("apart", one))
            for one in elements
        ]
        assert [said(one) for one in together] == [said(one) for one in apart]
        assert [one["allowed"] for one in compact] == [one["allowed"] for one in apart]
        assert not any("limits" in one for one in compact)

    def test_nothing_is_taken_if_one_ask_is_wrong(self, api: Api, entity: str) -> None:
        api("PUT", f"/v1/limits/entities/{entity}", {"limits": [WEEK, SLOTS]})
        plain = {"entity_id": entity, "resource": "r", "consume": {"spend": 1}}
        for wrong in (plain | {"consume": {"x": 1}}, plain | {"consume": {"parallel": 1}}, plain | {"consume": {}}):
            api.post("/v1/acquire/batch", {"asks": [plain, wrong, [plain, wrong]]}, status=422)
        assert api.available(entity) == {"spend": 10, "parallel": 2}
        assert api.post("/v1/acquire/batch", {"asks": [plain]})["decisions"][0]["allowed"]

    def test_no_more_than_500_in_all(self, api: Api, entity: str) -> None:
        one = ask(entity)
        assert len(api.post("/v1/acquire/batch", {"asks": [one] * 500})["decisions"]) == 500
        api.post("/v1/acquire/batch", {"asks": [one] * 501}, status=400)
        assert "501" in api.post("/v1/acquire/batch", {"asks": [[one] * 250, *[one] * 251]}, status=422)["detail"]


class TestRules:
    def test_what_the_middleware_would_say(self, api: Api, entity: str) -> None:
        login = {"method": "post", "path": "/login/?next=/", "user": entity}
        verdicts = [api.post("/v1/check", login) for _ in range(3)]
        assert [verdict["status"] for verdict in verdicts] == [200, 200, 429]
        assert verdicts[0]["headers"]["RateLimit-Policy"] == '"hour";q=2;w=3600'
        refused = verdicts[2]
        assert not refused["allowed"]
        assert int(refused["headers"]["Retry-After"]) > 0
        assert refused["body"]["violated-policies"] == ["hour"]
        assert api.post("/v1/check", login | {"path": "/other"})["allowed"]
        assert api.post("/v1/check", login | {"path": "/%6cogin"})["status"] == 429

    @pytest.mark.parametrize(
        "who", [{"user": "u"}, {"organisation": "o"}, {"api_key": "k"}, {"address": "1.2.3.4"}, {"entity_id": "e"}]
    )
    def test_check_counts_each_caller_by_itself(self, api: Api, entity: str, who: dict[str, str]) -> None:
        (kind, name), *_ = who.items()
        login = {"method": "POST", "path": "/login", kind: name if kind == "address" else entity}
        assert [api.post("/v1/check", login)["allowed"] for _ in range(3)] == [True, True, False]

    def test_check_uses_the_stored_plan_of_the_caller(self, api: Api, entity: str) -> None:
        api.post("/v1/entities", {"entity_id": f"user:{entity}", "metadata": {"plan": "pro"}}, status=201)
        login = {"method": "POST", "path": "/login", "user": entity}
        assert [api.post("/v1/check", login)["allowed"] for _ in range(6)] == [True] * 5 + [False]

    def test_two_plans_at_one_address_pass_what_the_larger_allows(self, api: Api, entity: str) -> None:
        api.post("/v1/entities", {"entity_id": f"user:{entity}", "metadata": {"plan": "pro"}}, status=201)
        search = {"method": "GET", "path": "/search", "address": "192.0.2.14"}
        users = (entity, f"{entity}-free")
        passed = [api.post("/v1/check", search | {"user": user})["allowed"] for _ in range(200) for user in users]
        assert sum(passed) == 20

    def test_check_of_a_rule_for_slots_is_refused_with_advice(self, api: Api) -> None:
        for _ in range(3):
            detail = api.post("/v1/check", {"method": "GET", "path": "/jobs"}, status=422)["detail"]
            assert "/v1/acquire" in detail
