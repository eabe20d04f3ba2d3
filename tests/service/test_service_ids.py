"""What cannot be an id, a limit's name or a cost is refused at every path, and lets nothing pass."""

from __future__ import annotations

from typing import Any, get_type_hints
from urllib.parse import quote

import httpx
import msgspec
import pytest
from service_process import TOKENS, Api, ServeProcess, check_answer, inside

from headgate.http.rules import Rule, Rules
from headgate.http.rules_file import RulesFile
from headgate.service.app import OPERATIONS, create_app
from headgate.service.operations import Operation

BAD_IDS = ["", " ", "a b", "-a", "_a", ".", "ü", "a#b", "a\n", "a\x00", "a\u2028b", "a" * 257, "a\\b"]
IDS = ("entity_id", "resource", "parent_id")
ASK = {"entity_id": "e", "resource": "r", "limits": ["n=5/week"]}
GOOD: dict[str, dict[str, Any]] = {
    "acquire": ASK,
    "acquire_batch": {"asks": [ASK]},
    "check": {"method": "POST", "path": "/login", "entity_id": "e"},
    "adjust": ASK | {"amounts": {"n": 1}},
    "penalize": ASK | {"seconds": 1},
    "reset": {"entity_id": "e", "resource": "r"},
    "create_entity": {"entity_id": "new", "parent_id": "e"},
    "update_entity": {"parent_id": "e"},
    "set_entity_limits": {"limits": ["n=5/week"]},
    "set_entity_resource_limits": {"limits": ["n=5/week"]},
    "set_resource_limits": {"limits": ["n=5/week"]},
}


def fields_of(kind: type[msgspec.Struct] | None) -> set[str]:
    return set() if kind is None else set(kind.__struct_fields__)


def _cases() -> list[tuple[Operation, str, str]]:
    """Every place where an id is sent."""
    found = []
    for one in OPERATIONS:
        asks = get_type_hints(one.body).get("asks") if one.body else None
        found += [(one, "body", name) for name in IDS if name in fields_of(one.body) or (asks and name in ASK)]
        found += [(one, "query", name) for name in IDS if name in fields_of(one.query)]
        found += [(one, "path", name) for name in IDS if name in one.parameters]
    return found


CASES = _cases()


def test_every_operation_with_an_id_is_here() -> None:
    assert {one.name for one, where, _ in CASES if where == "body"} <= GOOD.keys()
    assert {("check", "body"), ("acquire_batch", "body"), ("usage", "query"), ("get_children", "path")} <= {
        (one.name, where) for one, where, _ in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}-{case[2]}")
def test_an_id_that_is_not_allowed_is_refused(case: tuple[Operation, str, str], service: ServeProcess) -> None:
    operation, where, name = case
    with service.client(TOKENS["admin"]) as client:
        for bad in BAD_IDS:
            path = {one: bad if where == "path" and one == name else "e" for one in operation.parameters}
            if where == "path" and bad in ("", "."):
                continue  # another path, and not an id
            body = with_id(GOOD.get(operation.name, {}), name, bad) if where == "body" else GOOD.get(operation.name)
            query = {one: "e" for one in ("entity_id", "resource") if one in fields_of(operation.query)}
            answer = client.request(
                operation.method,
                operation.template.format(**{one: quote(value, safe="") for one, value in path.items()}),
                json=body if operation.body else None,
                params=query | ({name: bad} if where == "query" else {}),
            )
            check_answer(answer)
            assert answer.status_code == 422, (bad, answer.text)


def with_id(body: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    return {"asks": [ASK, [ASK, ASK | {name: value}]]} if "asks" in body else body | {name: value}


@pytest.mark.parametrize("entity_id", [*BAD_IDS, "+", "a" * 5000])
def test_a_check_of_an_id_that_is_not_allowed_never_passes(api: Api, entity_id: str) -> None:
    for path in ("/login", "/jobs", "/whatever"):
        detail = api.post("/v1/check", {"method": "POST", "path": path, "entity_id": entity_id}, status=422)["detail"]
        assert detail.startswith("entity_id ")


def test_a_check_with_hashed_ids_takes_any_id_and_no_empty_one() -> None:
    rules = RulesFile(Rules([Rule("all", limits="1/hour")]), {}, {})

    async def ask(client: httpx.AsyncClient) -> list[Any]:
        call = {"method": "GET", "path": "/"}
        ids = ("an id with spaces", "an id with spaces", "ü", "", "x" * 257)
        answers = [await client.post("/v1/check", json=call | {"entity_id": one}) for one in ids]
        return [answer.json().get("allowed", answer.status_code) for answer in answers]

    assert inside(create_app("memory://", rules=rules, hash_entity_ids=True), ask) == [True, False, True, 422, 422]


WRONG_AMOUNTS = ["true", "false", "null", '"1"', "[]", "NaN", "-Infinity", "1e400", "0.0001", "-1", "1e13", "1e308"]
AS_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("amount", WRONG_AMOUNTS)
def test_a_cost_that_is_none_takes_nothing(api: Api, entity: str, amount: str) -> None:
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=5/week"]})
    ask = f'{{"entity_id": "{entity}", "resource": "r", "consume": {{"n": {amount}}}}}'
    for path, body in (("acquire", ask), ("acquire/batch", f'{{"asks": [{ask}]}}')):
        answer = api.http.post(f"/v1/{path}", content=body, headers=AS_JSON)
        check_answer(answer)
        assert answer.status_code in (400, 422), answer.text
    assert api.available(entity) == {"n": 5}


def test_a_limit_that_is_not_there_is_refused_everywhere(api: Api, entity: str) -> None:
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=5/week"]})
    place = {"entity_id": entity, "resource": "r"}
    for name in ("m", "N", "", "n ", "n" * 65):
        taken = place | {"consume": {"n": 1, name: 1}}
        api.post("/v1/acquire", taken, status=422)
        api.post("/v1/acquire/batch", {"asks": [taken]}, status=422)
        api.post("/v1/adjust", place | {"amounts": {"n": 1, name: 1}}, status=422)
    assert api.available(entity) == {"n": 5}
