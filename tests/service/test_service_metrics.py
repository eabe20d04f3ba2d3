"""`/metrics` of a real process; and the dashboard for Grafana asks for what is there, and for all of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from service_process import TOKENS, Api, ServeProcess, check_answer, inside

from headgate.metrics import INSTRUMENTS, dashboard
from headgate.service.app import create_app

OF_THE_PROCESS = {"headgate_auth_failures", "headgate_last_reload_successful"}
WORD = re.compile(r"\bheadgate_\w+")
SELECTED = re.compile(r"(\w+)\s*(?:=~|!=|=)\s*\"([^\"]*)\"")


def scrape(service: ServeProcess, token: str) -> Mapping[str, Metric]:
    with service.client(token) as client:
        answer = client.get("/metrics")
        check_answer(answer)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        return {family.name: family for family in text_string_to_metric_families(answer.text)}


def decisions(found: Mapping[str, Metric], namespace: str) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for sample in found["headgate_decisions"].samples
        if sample.labels["headgate_namespace"] == namespace
    }


def test_scrape_counts_decisions_and_leases(service: ServeProcess, api: Api, entity: str) -> None:
    before = decisions(scrape(service, TOKENS["read"]), "default")
    wish = {"entity_id": entity, "resource": "r", "limits": ["n=1/week"]}
    for allowed in (True, False, False):
        assert api.post("/v1/acquire", wish)["allowed"] is allowed
    slots = wish | {"limits": ["parallel=1 concurrent"], "lease": {}}
    lease_id = api.post("/v1/acquire", slots)["lease_id"]
    found = scrape(service, TOKENS["read"])
    after = decisions(found, "default")
    assert {name: after[name] - before[name] for name in after} == {
        "allowed": 2,
        "refused": 2,
        "degraded": 0,
        "unavailable": 0,
    }
    breaker = {sample.labels["state"]: sample.value for sample in found["headgate_breaker_state"].samples}
    assert breaker == {"closed": 1, "half-open": 0, "open": 0}
    text = str(list(found.values()))
    assert entity not in text
    assert lease_id not in text
    api.post(f"/v1/leases/{lease_id}/release", {})


def test_a_token_sees_its_namespace_alone(service: ServeProcess, entity: str) -> None:
    with service.client(TOKENS["other"]) as client:
        client.post("/v1/acquire", json={"entity_id": entity, "resource": "r", "limits": ["n=1/week"]})
    mine, other = scrape(service, TOKENS["read"]), scrape(service, TOKENS["other"])
    for found, namespace in ((mine, "default"), (other, "elsewhere")):
        of_limiters = [family for name, family in found.items() if name not in OF_THE_PROCESS]
        seen = {sample.labels["headgate_namespace"] for family in of_limiters for sample in family.samples}
        assert seen == {namespace}


def test_resources_that_are_told_apart() -> None:
    app = create_app("memory://", metrics_resources=["chat"])

    async def work(client: Any) -> str:
        for resource in ("chat", "x"):
            await client.post("/v1/acquire", json={"entity_id": "e", "resource": resource, "limits": ["n=1/week"]})
        return str((await client.get("/metrics")).text)

    said = inside(app, work)
    for resource in ("chat", "other"):
        labels = f'headgate_namespace="default",outcome="allowed",resource="{resource}",store="memory"'
        assert f"headgate_decisions_total{{{labels}}} 1.0" in said


# The dashboard


@pytest.fixture(scope="module")
def found(service: ServeProcess) -> Mapping[str, Metric]:
    return scrape(service, TOKENS["read"])


def objects(inside: Any) -> Iterator[dict[str, Any]]:
    if isinstance(inside, dict):
        yield inside
    for inner in inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ():
        yield from objects(inner)


DASHBOARD = json.loads(dashboard())
QUERIES = [one["expr"] for one in objects(DASHBOARD) if "expr" in one]
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}


def names_in(query: str) -> set[str]:
    return set(WORD.findall(query)) - {"headgate_namespace"}


@pytest.mark.parametrize("query", [*QUERIES, *(one["definition"] for one in VARIABLES.values() if "definition" in one)])
def test_what_it_asks_for_is_there(query: str, found: Mapping[str, Metric]) -> None:
    samples = [sample for family in found.values() for sample in family.samples]
    assert names_in(query)
    for name in names_in(query):
        labels = [sample.labels for sample in samples if sample.name == name]
        assert labels, f"{name} is not exported"
        by = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"label_values\(\w+, (\w+)\)", query)
        for label in [word.strip() for words in by for word in words.split(",")]:
            assert all(label in own for own in labels), f"{name} has no {label}"
        for label, text in SELECTED.findall(query):
            assert all(label in own for own in labels), f"{name} has no {label}"
            wanted = set() if text.startswith("$") else set(text.split("|"))
            assert wanted <= {own[label] for own in labels}
    assert set(re.findall(r"\$(\w+)", query)) <= {*VARIABLES, "__rate_interval"}


def test_it_has_all_there_is(found: Mapping[str, Metric]) -> None:
    exported = {family.name for family in found.values() if not family.name.endswith("_created")}
    assert exported == {one.prometheus_name.removesuffix("_total") for one in INSTRUMENTS} | OF_THE_PROCESS
    shown = {name for query in QUERIES for name in names_in(query)}
    for one in INSTRUMENTS:
        assert any(name.startswith(one.prometheus_name) for name in shown), f"{one.prometheus_name} is nowhere"


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
    assert {one["uid"] for one in objects(DASHBOARD) if one.get("type") == "prometheus"} == {"${datasource}"}
    assert VARIABLES["datasource"]["query"] == "prometheus"


def test_module_prints_the_grafana_dashboard() -> None:
    said = subprocess.run([sys.executable, "-m", "headgate.metrics"], capture_output=True, text=True, check=True)
    assert said.stdout == dashboard()
