"""Looking, correcting, entities and stored limits over HTTP."""

from __future__ import annotations

from service_process import Api


def test_entity_is_created_changed_listed_and_deleted(api: Api, entity: str) -> None:
    made = api.post("/v1/entities", {"entity_id": entity, "name": "Ann", "metadata": {"a": [1]}}, status=201)
    assert made == api.get(f"/v1/entities/{entity}")
    assert made == {
        "entity_id": entity,
        "name": "Ann",
        "parent_id": None,
        "cascade": False,
        "metadata": {"a": [1]},
        "version": 1,
    }
    assert "PATCH" in api.post("/v1/entities", {"entity_id": entity}, status=409)["detail"]
    changed = api("PATCH", f"/v1/entities/{entity}", {"name": None, "expected_version": 1})
    assert (changed["name"], changed["metadata"], changed["version"]) == (None, {"a": [1]}, 2)
    api("PATCH", f"/v1/entities/{entity}", {"name": "Bob", "expected_version": 1}, status=409)
    assert api("DELETE", f"/v1/entities/{entity}", status=204) is None
    assert "POST /v1/entities" in api.get(f"/v1/entities/{entity}", status=404)["detail"]


def test_children_come_in_pages(api: Api, entity: str) -> None:
    api.post("/v1/entities", {"entity_id": entity}, status=201)
    for number in range(5):
        api.post("/v1/entities", {"entity_id": f"{entity}-{number}", "parent_id": entity}, status=201)
    found, query = [], {"limit": 2}
    while True:
        page = api.get(f"/v1/entities/{entity}/children", **query)
        found += [child["entity_id"] for child in page["items"]]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
    assert found == [f"{entity}-{number}" for number in range(5)]
    assert "children" in api("DELETE", f"/v1/entities/{entity}", status=422)["detail"]
    assert "cursor" in api.get(f"/v1/entities/{entity}/children", cursor="x", status=422)["detail"]


def test_limits_are_stored_read_and_deleted_at_every_level(api: Api, entity: str) -> None:
    resource = f"models/{entity}"
    levels = {
        "system": "/v1/limits/system",
        "resource": f"/v1/limits/resources/{resource}",
        "entity_default": f"/v1/limits/entities/{entity}",
        "entity": f"/v1/limits/entities/{entity}/{resource.replace('/', '%2F')}",
    }
    try:
        for number, (source, path) in enumerate(levels.items(), 1):
            stored = api("PUT", path, {"limits": [f"n={number}/week", "p=3 concurrent ttl 9s"]})
            del stored["effective"]
            found = api.get(path)
            assert found == stored | {"version": found["version"]}
            assert stored["limits"] == [
                {"name": "n", "capacity": number, "refill_amount": number, "refill_period_seconds": 604800},
                {"name": "p", "slots": 3, "ttl_seconds": 9},
            ]
            again = api("PUT", path, {"limits": stored["limits"]})
            assert again.pop("effective")["before"]["limits"] == stored["limits"]
            assert again == stored
            found = api.get("/v1/limits/resolve", entity_id=entity, resource=resource)
            assert (found["source"], found["limits"][0]["capacity"]) == (source, number)
        assert resource in api.get("/v1/limits/resources", limit=1000)["items"]
        assert entity in api.get("/v1/limits/entities", limit=1000)["items"]
        assert api.get("/v1/limits/entities", resource=resource)["items"] == [entity]
    finally:
        deleted = [api("DELETE", path) for path in reversed(levels.values())]
    assert [one["deleted"] for one in deleted] == [True] * 4
    assert api("DELETE", levels["entity"])["deleted"] is False
    nothing = {"limits": [], "inherit": True, "on_unavailable": None, "version": 0}
    assert api.get(levels["system"]) == nothing


def test_a_change_answers_what_holds_before_and_after_it(api: Api, entity: str) -> None:
    own, resource = f"/v1/limits/entities/{entity}", f"models/{entity}"
    api("PUT", f"/v1/limits/resources/{resource}", {"limits": ["rpm=9/day", "tpm=9/day"]})
    first = api("PUT", f"{own}/{resource}", {"limits": ["rpm=1/day"]})["effective"]
    assert (first["before"]["sources"], first["dropped"]) == ({"rpm": "resource", "tpm": "resource"}, {})
    assert first["after"]["sources"] == {"rpm": "entity", "tpm": "resource"}
    assert first["after"] == api.get("/v1/limits/resolve", entity_id=entity, resource=resource)
    alone = api("PUT", f"{own}/{resource}", {"limits": ["rpm=1/day"], "inherit": False})
    assert (alone["inherit"], alone["effective"]["dropped"]) == (False, {"tpm": [resource]})
    assert api.get(f"{own}/{resource}")["inherit"] is False
    gone = api("DELETE", f"/v1/limits/resources/{resource}")["effective"]
    assert gone["dropped"] == {"rpm": [resource], "tpm": [resource]}


def test_a_preview_changes_nothing(api: Api, entity: str) -> None:
    path = f"/v1/limits/entities/{entity}"
    assert api("PUT", path, {"limits": ["rpm=1/day"], "preview": True})["effective"]["after"]["source"]
    assert api.get(path)["version"] == 0
    api("PUT", path, {"limits": ["rpm=1/day", "tpm=1/day"]})
    preview = api("PUT", path, {"limits": ["rpm=1/day"], "preview": True, "expected_version": 1})
    assert preview["effective"]["dropped"] == {"tpm": [None]}
    gone = api("DELETE", f"{path}?preview=true")
    assert (gone["deleted"], list(gone["effective"]["dropped"])) == (False, ["rpm", "tpm"])
    for late in ({"limits": ["rpm=1/day"], "expected_version": 7}, {"limits": ["rpm=1/day"], "expected_version": 0}):
        assert "read it again" in api("PUT", path, late | {"preview": True}, status=409)["detail"]
    found = api.get(path)
    assert (found["version"], len(found["limits"])) == (1, 2)
    assert "inherit" in api("PUT", path, {"limits": ["rpm=1/day"], "inherit": "no"}, status=400)["detail"]


def test_usage_shows_corrections_penalties_and_resets(api: Api, entity: str) -> None:
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=10/week", "m=5/week"]})
    place = {"entity_id": entity, "resource": "r"}
    assert api("POST", "/v1/adjust", place | {"amounts": {"n": 12}}, status=204) is None
    usage = {limit["limit_name"]: limit for limit in api.get("/v1/usage", **place)["limits"]}
    assert {name: (limit["capacity"], limit["available"], limit["used"]) for name, limit in usage.items()} == {
        "n": (10, -2, 12),
        "m": (5, 5, 0),
    }
    assert [limit["resource"] for limit in api.get("/v1/usage", entity_id=entity)["limits"]] == ["r"]
    assert api("POST", "/v1/penalize", place | {"seconds": 60}, status=204) is None
    assert api.get("/v1/usage", **place)["limits"][0]["blocked_for_seconds"] > 0
    assert api("POST", "/v1/reset", place, status=204) is None
    assert api.available(entity) == {"n": 10, "m": 5}
