"""Usage, audit and namespaces over HTTP."""

from __future__ import annotations

from service_process import TOKENS, Api, ServeProcess


def test_usage_by_the_hour_and_in_all(api: Api, entity: str) -> None:
    ask = {"entity_id": entity, "resource": "models/big", "limits": ["rpm=60/minute", "usd=10/day"]}
    for _ in range(3):
        assert api.post("/v1/acquire", {**ask, "consume": {"rpm": 2, "usd": 0.125}})["allowed"]
    api.post("/v1/adjust", {**ask, "amounts": {"rpm": -1}}, status=204)
    (month,) = api.get("/v1/usage/history", entity_id=entity, window="month")["items"]
    assert (month["entity_id"], month["resource"], month["window"]) == (entity, "models/big", "month")
    assert month["consumed"] == {"rpm": 5, "usd": 0.375}
    summary = api.get("/v1/usage/summary", entity_id=entity, resource="models/big", window="day")["limits"]
    assert summary["rpm"]["total"] == 5
    start, end = month["start"].replace("+00:00", "Z"), month["end"].replace("+00:00", "Z")
    hours = api.get("/v1/usage/history", entity_id=entity, start=start, end=end)
    assert sum(hour["consumed"]["rpm"] for hour in hours["items"]) == 5
    assert hours["cursor"] is None
    assert "start" in api.get("/v1/usage/history", entity_id=entity, start="yesterday", status=400)["detail"]
    assert "before end" in api.get("/v1/usage/history", entity_id=entity, start=end, end=start, status=422)["detail"]


def test_audit_names_who_changed_what_and_conflicts_are_409(api: Api, entity: str) -> None:
    api.post("/v1/entities", {"entity_id": entity, "name": "<b>Ann</b>"}, status=201)
    path = f"/v1/limits/entities/{entity}"
    assert api.get(path) == {"limits": [], "inherit": True, "version": 0}
    api("PUT", path, {"limits": ["rpm=1/minute"], "expected_version": 0})
    version = api.get(path)["version"]
    api("PUT", path, {"limits": ["rpm=2/minute"], "expected_version": version})
    late = api("PUT", path, {"limits": ["rpm=3/minute"], "expected_version": version}, status=409)
    assert "read it again" in late["detail"]
    assert "read it again" in api("DELETE", f"{path}?expected_version={version}", status=409)["detail"]
    api.post("/v1/reset", {"entity_id": entity, "resource": "r"}, status=204)
    first = api.get("/v1/audit", entity_id=entity, limit=2)
    rest = api.get("/v1/audit", entity_id=entity, cursor=first["cursor"])
    events = first["items"] + rest["items"]
    assert [event["action"] for event in events] == ["buckets.reset", "limits.set", "limits.set", "entity.created"]
    assert events[1]["before"] == {"limits": {"rpm": "1/minute"}}
    assert events[1]["after"] == {"limits": {"rpm": "2/minute"}}
    assert events[3]["after"]["name"] == "<b>Ann</b>"
    assert {event["actor"] for event in events} == {"admin"}  # the name of the token
    assert entity in {one["entity_id"] for one in api.get("/v1/entities", limit=1000)["items"]}


def test_namespaces_need_a_scope_of_their_own(api: Api, service: ServeProcess, entity: str) -> None:
    assert "namespaces" in api.get("/v1/namespaces", status=403)["detail"]
    path = f"/v1/namespaces/{entity}"
    with service.client(TOKENS["namespaces"]) as client:
        operator = Api(client)
        operator.get("/v1/entities", status=403)
        assert "register" in operator.get(path, status=404)["detail"]
        made = operator("PUT", path, {})
        assert (made["name"], made["status"]) == (entity, "active")
        assert operator.get(path) == made
        assert made in operator.get("/v1/namespaces", limit=1000)["items"]
        assert "delete it first" in operator.post(f"{path}/purge", {"confirm": entity}, status=422)["detail"]
        assert operator("DELETE", path)["status"] == "deleted"
        assert operator.post(f"{path}/recover", {})["status"] == "active"
        operator("DELETE", path)
        assert "confirm" in operator.post(f"{path}/purge", {"confirm": "other"}, status=422)["detail"]
        assert operator.post(f"{path}/purge", {"confirm": entity}) == {"removed": 0}
        operator.get(path, status=404)
