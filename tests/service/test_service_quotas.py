"""Quotas, schedules and alerts over HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest
from service_process import TOKENS, Api, ServeProcess

DAY = "usd=10/day resets 06:30 Europe/Berlin"


def take(api: Api, entity: str, amount: int, *limits: Any) -> Any:
    name = limits[0].partition("=")[0]
    body = {"entity_id": entity, "resource": "r", "consume": {name: amount}, "limits": list(limits)}
    return api.post("/v1/acquire", body)


def test_a_status_says_when_a_quota_resets(api: Api, entity: str) -> None:
    first, now_ms = take(api, entity, 10, DAY)["limits"][0], time.time() * 1000
    assert 0 < first["resets_at_ms"] - now_ms <= 25 * 3_600_000
    assert first["resets_at_ms"] % 1_800_000 == 0
    refused = take(api, entity, 1, DAY)
    assert not refused["allowed"]
    (status,) = refused["limits"]
    assert status["resets_at_ms"] == pytest.approx(now_ms + 1000 * refused["retry_after_seconds"], abs=30_000)
    assert "resets_at_ms" not in take(api, entity, 1, "rpm=5/minute")["limits"][0]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (DAY, {"amount": 10, "per": "day", "tz": "Europe/Berlin", "at": "06:30"}),
        ("usd=10/day resets UTC", {"amount": 10, "per": "day"}),
        ("usd=5/week resets sunday UTC", {"amount": 5, "per": "week", "on": "sunday"}),
        ("usd=5/month resets 15 UTC", {"amount": 5, "per": "month", "on": 15}),
        ("usd=5/month resets 15 UTC", {"amount": 5, "per": "month", "on": 15.0}),
        ("usd=9/cron 0 6 * * 1-5 resets UTC", {"amount": 9, "cron": "0 6 * * 1-5"}),
        ("usd=45/5h from first use", {"amount": 45, "seconds_from_first_use": 18_000}),
        (
            "usd=10/minute alert 80% 100%",
            {"capacity": 10, "refill_amount": 10, "refill_period_seconds": 60, "alert_at": [0.8, 1]},
        ),
    ],
)
def test_text_and_objects_are_the_same(api: Api, entity: str, text: str, form: dict[str, Any]) -> None:
    place = f"/v1/limits/entities/{entity}"
    by_text = api("PUT", place, {"limits": [text]})["limits"]
    assert by_text == api("PUT", place, {"limits": [{"name": "usd", **form}]})["limits"]
    assert by_text == api("PUT", place, {"limits": by_text})["limits"]
    assert by_text == api.get(place)["limits"]
    resolved = api.get("/v1/limits/resolve", entity_id=entity, resource="r")
    assert resolved["limits"] == by_text
    (used,) = api.get("/v1/usage", entity_id=entity, resource="r")["limits"]
    assert f"usd={used['limit']}" == text


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"amount": 10}, "cron"),
        ({"amount": 10, "per": "day", "slots": 1}, "different kinds"),
        ({"amount": 10, "per": "day", "slots": 1, "ttl_seconds": 5}, "different kinds"),
        ({"amount": 10, "per": "day", "cron": "0 6 * * *"}, "different kinds"),
        ({"amount": 10, "per": "day", "tz": "Mars/Base"}, "Mars/Base"),
        ({"amount": 10, "per": "day", "tz": "../../etc/passwd"}, "time zone"),
        ({"amount": 10, "per": "hour", "tz": "Europe/Berlin"}, "hour"),
        ({"amount": 10, "per": "day", "at": "06:30:01"}, "06:30:01"),
        ({"amount": 10, "per": "month", "on": "31"}, "31"),
        ({"amount": 10, "per": "year", "on": "02-30"}, "02-30"),
        ({"amount": 10, "per": "decade"}, "decade"),
        ({"amount": 0, "per": "day"}, "amount"),
        ({"amount": 10, "cron": "61 * * * *"}, "61"),
        ({"capacity": 10, "refill_amount": 1, "refill_period_seconds": 1, "alert_at": [1.5]}, "alert_at"),
    ],
)
def test_what_is_wrong_is_said(api: Api, entity: str, form: dict[str, Any], says: str) -> None:
    body = {"limits": [{"name": "usd", **form}]}
    assert says in api("PUT", f"/v1/limits/entities/{entity}", body, status=422)["detail"]


def test_usage_of_a_quota(api: Api, entity: str) -> None:
    place = f"/v1/limits/entities/{entity}/r"
    api("PUT", place, {"limits": [DAY, "messages=45/5h from first use"]})
    usage = {one["limit_name"]: one for one in api.get("/v1/usage", entity_id=entity, resource="r")["limits"]}
    assert usage["usd"]["resets_at_ms"] > time.time() * 1000
    assert usage["messages"]["resets_at_ms"] is None
    api.post("/v1/acquire", {"entity_id": entity, "resource": "r", "consume": {"usd": 4, "messages": 5}})
    usage = {one["limit_name"]: one for one in api.get("/v1/usage", entity_id=entity)["limits"]}
    assert {name: (one["used"], one["available"], one["limit"]) for name, one in usage.items()} == {
        "usd": (4, 6, "10/day resets 06:30 Europe/Berlin"),
        "messages": (5, 40, "45/5h from first use"),
    }
    assert usage["messages"]["resets_at_ms"] == pytest.approx(time.time() * 1000 + 18_000_000, abs=60_000)


SCHEDULE = {
    "tz": "Europe/Berlin",
    "entries": [
        {"hours": "00:00-24:00", "limits": ["rph=100/hour"]},
        {"hours": "sat,sun", "factor": 0.5},
    ],
}


def test_a_schedule_is_stored_shown_and_applied(api: Api, entity: str) -> None:
    place = f"/v1/limits/entities/{entity}/r"
    wanted = {"limits": ["rph=20/hour", "rpm=5/minute"], "schedule": SCHEDULE}
    preview = api("PUT", place, wanted | {"preview": True})
    assert [limit["capacity"] for limit in preview["effective"]["after"]["limits"]] == [100, 5]
    assert api.get(place)["limits"] == []
    stored = api("PUT", place, wanted)
    read = api.get(place)
    assert read["schedule"] == stored["schedule"]
    assert [limit["capacity"] for limit in read["limits"]] == [20, 5]
    assert read["schedule"]["entries"][1] == {"hours": "sat,sun", "factor": 0.5}
    assert read["schedule"]["entries"][0]["limits"][0]["capacity"] == 100
    again = api("PUT", place, {"limits": read["limits"], "schedule": read["schedule"]})
    assert again["schedule"] == read["schedule"]
    decided = api.post("/v1/acquire", {"entity_id": entity, "resource": "r", "consume": {"rph": 100}})
    assert decided["allowed"]
    assert "schedule" not in api("PUT", place, {"limits": ["rph=20/hour"]})
    assert "schedule" not in api.get(place)


def test_a_schedule_for_everyone(service: ServeProcess) -> None:
    with service.client(TOKENS["other"]) as client:  # another namespace
        api = Api(client)
        for place in ("/v1/limits/system", "/v1/limits/resources/scheduled"):
            api("PUT", place, {"limits": ["rph=20/hour"], "schedule": SCHEDULE})
            assert len(api.get(place)["schedule"]["entries"]) == 2
            api("DELETE", place)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"entries": [{"hours": "all day", "factor": 2}]}, "all day"),
        ({"entries": [{"hours": "sat"}]}, "factor"),
        ({"entries": [{"hours": "sat", "factor": 2, "limits": ["rph=1/hour"]}]}, "factor"),
        ({"entries": [{"hours": "sat", "factor": 0}]}, "factor"),
        ({"entries": [{"hours": "sat", "limits": ["other=1/hour"]}]}, "other"),
        ({"entries": [{"hours": "sat", "factor": 2}], "tz": "Mars/Base"}, "Mars/Base"),
    ],
)
def test_a_bad_schedule_is_refused(api: Api, entity: str, schedule: Any, says: str) -> None:
    body = {"limits": ["rph=20/hour"], "schedule": schedule}
    assert says in api("PUT", f"/v1/limits/entities/{entity}", body, status=422)["detail"]


def test_a_schedule_is_bounded(api: Api, entity: str) -> None:
    body = {"limits": ["rph=20/hour"], "schedule": {"entries": [{"hours": "sat", "factor": 2}] * 51}}
    api("PUT", f"/v1/limits/entities/{entity}", body, status=400)


def test_alerts_are_listed_in_pages(service: ServeProcess, entity: str) -> None:
    with service.client(TOKENS["other"]) as client:
        api = Api(client)
        for number in range(3):
            take(api, f"{entity}-{number}", 9, "usd=10/day resets UTC alert 80% 100%")
        alerts = [api.get("/v1/alerts", limit=2)]
        alerts.append(api.get("/v1/alerts", limit=2, cursor=alerts[0]["cursor"]))
        found = [one for page in alerts for one in page["items"]]
        assert [one["entity_id"] for one in found] == [f"{entity}-{number}" for number in (2, 1, 0)]
        assert {(one["threshold"], one["used"], one["amount"], one["delivered"]) for one in found} == {
            (0.8, 9, 10, False)
        }
    with service.client(TOKENS["decide"]) as client:
        Api(client).get("/v1/alerts", status=403)
