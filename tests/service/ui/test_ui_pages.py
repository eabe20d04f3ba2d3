"""What is on the pages, and what their forms do: entities, buckets, namespaces; and what they cost."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections import Counter
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from dashboard_site import HOSTILE, Site, check_headers, path_of, text_of
from markupsafe import escape
from service_process import ServeProcess, inside

import headgate.stores
from headgate import Limit, RateLimiter, SyncRateLimiter, VersionConflict
from headgate.service.app import ServiceApp, create_app
from headgate.service.state import Service
from headgate.stores.memory.store import MemoryStore

_numbers = itertools.count()
ODD_RESOURCES = ["a/b", "a//b", "a/../b", "a/.", "x:y@z/-_.", "new"]
ODD_IDS = ["a:b@c.d-e_f", "new", "a..b", "0", "x" * 256]


# Entities


def test_an_entity_from_its_beginning_to_its_end(entity: str, boss: Site) -> None:
    parent = f"{entity}.parent"
    boss.post("/ui/new", entity_id=parent, name="Parent")
    made = boss.post(
        "/ui/new", entity_id=entity, name="Child", parent_id=parent, cascade="yes", metadata='{"plan": "pro"}'
    )
    page = boss.get(made.headers["location"])
    assert {"Child", "plan", "pro"} <= set(text_of(page).split())
    assert path_of(parent) in page.text
    assert path_of(entity) in boss.get(path_of(parent)).text
    assert "exists already" in boss.post("/ui/new", 409, entity_id=entity).text
    form = boss.get(path_of(entity, "edit"))
    boss.follow(form, path_of(entity, "edit"), name="Renamed", parent_id=parent, metadata="{}")
    late = boss.follow(form, path_of(entity, "edit"), 409, name="Mine", parent_id="", metadata='{"a": 1}')
    assert "Renamed" in text_of(late)
    assert "Mine" in text_of(late)
    boss.follow(late, path_of(entity, "edit"))
    assert "Mine" in boss.get(path_of(entity)).text
    assert "Delete it" in boss.get(path_of(entity, "delete")).text
    boss.post(path_of(entity, "delete"))
    assert "No record" in boss.get(path_of(entity)).text
    events = text_of(boss.get("/ui/audit", entity=entity))
    for action in ("Entity created", "Entity updated", "Entity deleted"):
        assert action in events


def test_cyclic_or_missing_parents_are_refused(entity: str, boss: Site) -> None:
    boss.post("/ui/new", entity_id=entity)
    boss.post("/ui/new", entity_id=f"{entity}.child", parent_id=entity)
    form = boss.get(path_of(entity, "edit"))
    circle = boss.follow(form, path_of(entity, "edit"), 422, parent_id=f"{entity}.child", metadata="{}")
    assert "makes a cycle" in text_of(circle)
    assert "does not exist" in boss.post("/ui/new", 422, entity_id=f"{entity}.x", parent_id="nobody").text
    assert "children" in boss.get(path_of(entity, "delete")).text
    assert "has children" in boss.post(path_of(entity, "delete"), 422).text


@pytest.mark.parametrize("metadata", ["{", "[1]", "NaN", '{"a": NaN}', "[" * 5000, '{"a":' * 40 + "1" + "}" * 40])
def test_bad_metadata_is_refused(metadata: str, entity: str, boss: Site) -> None:
    assert "metadata" in text_of(boss.post("/ui/new", 422, entity_id=entity, metadata=metadata))


@pytest.mark.parametrize("odd", ODD_IDS)
def test_entity_ids_of_all_characters_work_in_paths(odd: str, boss: Site) -> None:
    assert odd in text_of(boss.get(path_of(odd)))
    form = boss.get("/ui/limits/edit", entity=odd)
    boss.follow(boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="3/hour"), "/ui/limits/edit")
    assert f'value="{odd}"' in boss.get("/ui/limits/edit", entity=odd).text


@pytest.mark.parametrize("resource", ODD_RESOURCES)
def test_resources_of_all_characters_work_in_links(resource: str, entity: str, boss: Site) -> None:
    form = boss.get("/ui/limits/edit", entity=entity, resource=resource)
    boss.follow(boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="3/hour"), "/ui/limits/edit")
    page = boss.get(path_of(entity))
    cards = re.findall(r"<article.*?</article>", page.text, re.DOTALL)
    (card,) = [one for one in cards if f'class="id">{resource}</h3>' in one]
    links = [unescape(one) for one in re.findall(r'href="(/ui/[^"]+)"', card)]
    assert len(links) == 3
    for one in links:
        assert f" on {resource}" in re.sub(r"\s+", " ", text_of(boss.get(one)))


@pytest.mark.parametrize("bad", ["%2e%2e", "a%00b", "%ff", "a%2Fb", "%3Cscript%3E", ";a", "a;b", "-a", "é"])
def test_bad_entity_ids_are_a_404_or_422(bad: str, boss: Site) -> None:
    for rest in ("", "/edit", "/delete", "/reset"):
        answer = boss.http.get(f"/ui/entities/{bad}{rest}")
        assert answer.status_code in (404, 422)
        check_headers(answer)


def test_finding_by_the_beginning_of_an_id(boss: Site) -> None:
    prefix = f"find{os.getpid()}"
    for number in range(3):
        boss.post("/ui/new", entity_id=f"{prefix}-{number}")
    found = text_of(boss.get("/ui/entities", q=prefix))
    assert all(f"{prefix}-{number}" in found for number in range(3))
    assert f"{prefix}-1" not in text_of(boss.get("/ui/entities", q=f"{prefix}-2"))
    assert "No entity with a record" in boss.get("/ui/entities", q=f"{prefix}-9").text
    boss.get("/ui/entities", 422, q=HOSTILE)
    boss.get("/ui/entities", 422, q="a#b")


def test_pages_follow_each_other(boss: Site) -> None:
    prefix = f"page{os.getpid()}"
    for number in range(51):
        boss.post("/ui/new", entity_id=f"{prefix}-{number:02}")
    first = boss.get("/ui/entities", q=prefix)
    (following,) = re.findall(r'href="([^"]+cursor=[^"]+)"', first.text)
    second = boss.get(unescape(following))
    assert f"{prefix}-50" not in first.text
    assert f"{prefix}-50" in second.text
    assert "cursor=" not in second.text
    boss.get("/ui/entities", 422, cursor="no cursor")
    boss.get("/ui/audit", 422, cursor="%%%")


# What is hostile


@pytest.fixture(scope="session")
def hostile(boss: Site) -> str:
    entity_id = f"hostile{os.getpid()}"
    boss.post("/ui/new", entity_id=entity_id, name=HOSTILE, metadata=f'{{"{_quoted()}": "{_quoted()}"}}')
    boss.post("/ui/new", entity_id=f"{entity_id}.child", name=HOSTILE, parent_id=entity_id)
    return entity_id


def _quoted() -> str:
    return HOSTILE.replace('"', '\\"')


@pytest.mark.parametrize("path", ["", "edit", "delete"])
def test_names_and_metadata_are_no_markup(path: str, hostile: str, boss: Site) -> None:
    page = boss.get(path_of(hostile, *filter(None, [path])))
    assert escape(HOSTILE) in page.text


@pytest.mark.parametrize("path", ["/ui", "/ui/entities", "/ui/audit", "/ui/live", "/ui/namespaces"])
def test_lists_are_no_markup(path: str, hostile: str, boss: Site) -> None:
    which = {"/ui/entities": {"q": hostile}, "/ui/audit": {"entity": hostile}}.get(path, {})
    page = boss.get(path, **which)
    if which:
        assert "&lt;script&gt;" in page.text


@pytest.mark.parametrize("name", ["q", "resource", "entity", "window", "done", "cursor", "next", "id", "parent"])
def test_queries_are_no_markup(name: str, boss: Site) -> None:
    for path in (
        "/ui",
        "/ui/entities",
        "/ui/entities/acme",
        "/ui/new",
        "/ui/buckets",
        "/ui/audit",
        "/ui/limits/edit",
    ):
        check_headers(boss.http.get(path, params={name: HOSTILE}))


# Buckets


def test_buckets_are_seen_penalized_and_reset(entity: str, served: ServeProcess, boss: Site) -> None:
    with served.client("the-secret-token-of-admin") as api:
        # A resource that has limits is on the page even if nothing is used of it.
        assert api.put("/v1/limits/resources/gpt-4o", json={"limits": ["rpm=100/hour"]}).is_success
        ask = {"entity_id": entity, "resource": "gpt-4o", "consume": {"rpm": 30}, "limits": ["rpm=40/hour"]}
        assert api.post("/v1/acquire", json=ask).json()["allowed"]
        boss.follow(
            boss.follow(boss.get("/ui/limits/edit", entity=entity), "/ui/limits/edit", 200, name="rpm", spec="40/hour"),
            "/ui/limits/edit",
        )
        page = boss.get(path_of(entity))
        assert 'aria-label="rpm on gpt-4o: 10 of 40 left"' in page.text
        assert "its own default" in page.text
        assert entity in boss.get("/ui/buckets").text
        assert entity in boss.get("/ui/buckets", resource="gpt-4o").text
        assert entity not in boss.get("/ui/buckets", resource="nothing").text
        form = boss.get(path_of(entity, "penalize"), resource="gpt-4o")
        sure = boss.follow(form, path_of(entity, "penalize"), 200, seconds="3600", factor="0.5")
        assert "are refused for 3600 seconds. Its tokens are multiplied by 0.5." in text_of(sure)
        assert "blocked" not in boss.get(path_of(entity)).text
        boss.follow(sure, path_of(entity, "penalize"))
        assert "blocked for" in boss.get(path_of(entity)).text
        for seconds, factor in (("", ""), ("x", ""), ("-1", ""), ("", "2"), ("nan", ""), ("inf", "")):
            fields = {"seconds": seconds, "factor": factor, "step": "confirm"}
            boss.follow(form, path_of(entity, "penalize"), 422, **fields)
        boss.follow(boss.get(path_of(entity, "reset"), resource="gpt-4o"), path_of(entity, "reset"))
        assert "40 of 40 left" in boss.get(path_of(entity)).text
        events = text_of(boss.get("/ui/audit", entity=entity))
        assert "Buckets penalized" in events
        assert "Buckets reset" in events


def test_usage_is_drawn_and_written(entity: str, served: ServeProcess, boss: Site) -> None:
    with served.client("the-secret-token-of-admin") as api:
        for resource, amount in (("gpt-4o", 7), ("images/large", 5)):
            limits = ["rpm=100/hour"]
            ask = {"entity_id": entity, "resource": resource, "consume": {"rpm": amount}, "limits": limits}
            api.post("/v1/acquire", json=ask)
    for window, bars in (("hour", 24), ("day", 30), ("month", 12)):
        page = boss.get(path_of(entity), window=window)
        assert "12 in all" in page.text
        assert "images/large 5" in page.text
        assert len(re.findall('class="hit"', page.text)) == bars
        assert len(re.findall('<tr><th scope="row">', page.text)) == bars
    boss.get(path_of(entity), 422, window="year")


# Namespaces


def test_a_namespace_from_its_beginning_to_its_end(boss: Site) -> None:
    name = f"shop:{os.getpid()}"
    place = f"/ui/namespaces/{quote(name, safe='')}"
    boss.post("/ui/namespaces/register", name=name)
    assert name in boss.get("/ui/namespaces").text
    assert "Delete it" in boss.get(f"{place}/delete").text
    boss.post(f"{place}/purge", 422, confirm=name)  # it is in use
    boss.post(f"{place}/delete")
    assert f"{place}/recover" in boss.get("/ui/namespaces").text
    boss.post(f"{place}/recover")
    boss.post(f"{place}/delete")
    question = boss.get(f"{place}/purge")
    assert f"Type {name} to confirm" in text_of(question)
    for wrong in ("", name.upper(), f"{name}x"):
        assert "type" in text_of(boss.post(f"{place}/purge", 422, confirm=wrong))
    boss.post(f"{place}/purge", confirm=name)
    page = text_of(boss.get("/ui/namespaces"))
    for action in ("registered", "deleted", "recovered", "purged"):
        assert f"Namespace {action}" in page


def test_bad_or_unknown_namespaces_are_refused(boss: Site) -> None:
    boss.post("/ui/namespaces/register", 422, name="a b")
    boss.post("/ui/namespaces/register", 422, name=HOSTILE)
    boss.post("/ui/namespaces/default/delete", 422)
    boss.get("/ui/namespaces/nothing/purge", 404)
    boss.post("/ui/namespaces/nothing/purge", 404, confirm="nothing")


# What it costs, and what happens when the store is away


class Counted(MemoryStore):
    """A store that counts what it is asked, and how much it answers with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.listed = 0

    def get_records(self, *args: Any) -> Any:
        self.calls["get_records"] += 1
        return super().get_records(*args)

    def list_records(self, *args: Any) -> Any:
        self.calls["list_records"] += 1
        found = super().list_records(*args)
        self.listed += len(found)
        return found

    def list_buckets(self, *args: Any) -> Any:
        self.calls["list_buckets"] += 1
        return super().list_buckets(*args)

    def list_usage(self, *args: Any) -> Any:
        self.calls["list_usage"] += 1
        return super().list_usage(*args)


@pytest.mark.parametrize("api", [True, False])
def test_the_overview_costs_the_same_however_many_there_are(api: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headgate.stores, "_registered", {})
    store = Counted()
    headgate.stores.register_store("counted", lambda url, timeout: store)

    async def asked(client: httpx.AsyncClient) -> tuple[Counter[str], int]:
        store.calls.clear()
        store.listed = 0
        for path in ("/ui", "/ui/live"):
            assert (await client.get(path)).status_code == 200
        return Counter(store.calls), store.listed

    async def work(client: httpx.AsyncClient) -> list[tuple[Counter[str], int]]:
        await asyncio.to_thread(fill, 1)
        await client.get("/ui")  # the namespace is looked at once a minute
        found = []
        for count in (10, 500):
            await asyncio.to_thread(fill, count)
            found.append(await asked(client))
        return found

    def fill(count: int) -> None:
        with SyncRateLimiter("counted://", coalesce=False) as limiter:
            for number in range(count):
                entity_id = f"e{count}-{number}"
                limiter.create_entity(entity_id)
                limiter.try_acquire(entity_id, "api", {"rpm": 1}, [Limit.per_minute("rpm", 10)])

    few, many = inside(ServiceApp(Service("counted://"), api=api), work)
    assert few == many
    calls, listed = many
    assert sum(calls.values()) <= 5
    assert listed <= 6
    assert calls["list_buckets"] == (0 if api else 2)


def test_a_store_that_is_away_is_a_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get("/ui/entities")

    answer = inside(create_app("redis://127.0.0.1:1/0"), work)
    assert answer.status_code == 503
    assert "the store does not answer" in answer.text.lower()
    assert "127.0.0.1:1" not in answer.text
    check_headers(answer)


def test_a_failure_is_a_page_without_details(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app("memory://")

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        looks = app.dashboard.looks("default")
        monkeypatch.setattr(looks, "list_entities", None)
        return await client.get("/ui/entities")

    answer = inside(app, work)
    assert answer.status_code == 500
    assert "NoneType" not in answer.text
    assert "NoneType" in caplog.text
    check_headers(answer)


def test_hashed_ids_are_looked_at_as_they_are_stored() -> None:
    """A hash that is shown leads to what it stands for."""
    app = create_app("memory://", hash_entity_ids=b"key")

    async def work(client: httpx.AsyncClient) -> None:
        limiter = app.service.room("default").limiter
        await limiter.create_entity("a secret", name="Known by its hash")
        await limiter.try_acquire("a secret", "api", {"rpm": 1}, [Limit.per_minute("rpm", 10)])
        page = await client.get("/ui/entities")
        (place,) = re.findall(r'href="(/ui/entities/[0-9a-f]{40})"', page.text)
        found = await client.get(place)
        assert "Known by its hash" in found.text
        assert "9 of 10 left" in found.text
        assert "a secret" not in found.text

    inside(app, work)


def test_prefixes_and_own_limits_and_everyones_buckets() -> None:
    """What the pages are made of, on its own."""

    async def work() -> None:
        async with RateLimiter("memory://") as limiter:
            for entity_id in ("ann", "anna", "bob"):
                await limiter.create_entity(entity_id)
            assert [one.entity_id for one in await limiter.list_entities(prefix="ann")] == ["ann", "anna"]
            assert len(await limiter.list_entities(prefix="ann", limit=1)) == 1
            with pytest.raises(headgate.ValidationError, match="prefix"):
                await limiter.list_entities(prefix="a#")
            rpm = [Limit.per_minute("rpm", 5)]
            await limiter.set_limits("ann", rpm)
            await limiter.set_limits("ann", rpm, "a/b")
            assert await limiter.get_own_limits("ann") == {None: rpm, "a/b": rpm}
            assert await limiter.get_own_limits("bob") == {}
            await limiter.try_acquire("ann", "api", {"rpm": 2})
            (bucket,) = await limiter.list_buckets()
            assert (bucket.entity_id, bucket.resource, bucket.available) == ("ann", "api", 3)
            assert await limiter.list_buckets("other") == []
            with pytest.raises(VersionConflict):
                await limiter.set_limits("ann", rpm, expected_version=7)

    asyncio.run(work())
