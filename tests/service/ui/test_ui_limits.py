"""Limits on the pages: seen before they are changed, and two people at once."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from dashboard_site import HOSTILE, Site, text_of
from markupsafe import escape
from service_process import ServeProcess, inside

from headgate import Limit
from headgate.limiter.config.limits import awrite_level
from headgate.service.app import create_app
from headgate.service.ui.words import duration, grouped, limit_changes

_numbers = itertools.count()


# Limits


@pytest.mark.parametrize("level", ["entity", "entity_default", "resource"])
def test_limits_are_previewed_and_then_stored(level: str, entity: str, boss: Site) -> None:
    place = {"entity": entity} if level.startswith("entity") else {}
    place |= {} if level == "entity_default" else {"resource": f"r/{next(_numbers)}"}
    form = boss.get("/ui/limits/edit", **place)
    assert "No limits are stored at this level yet" in form.text
    rows = {"name": ["rpm", "", "tpm"], "spec": ["100/minute burst 150", "", "10000/minute"]}
    preview = boss.follow(form, "/ui/limits/edit", 200, **rows)
    assert "rpm 100/minute burst 150" in text_of(preview).replace("none ", "").replace("none", "")
    assert "Nothing is changed yet" in preview.text
    assert "No limits are stored at this level yet" in boss.get("/ui/limits/edit", **place).text
    done = boss.follow(preview, "/ui/limits/edit")
    assert done.headers["location"].endswith("?done=limits")
    assert 'role="status"' in boss.get(done.headers["location"]).text
    stored = boss.get("/ui/limits/edit", **place)
    assert 'value="100/minute burst 150"' in stored.text
    assert 'value="10000/minute"' in stored.text
    event = text_of(boss.get("/ui/audit"))
    assert "boss" in event
    assert "10,000/minute" in event


def test_the_form_has_what_holds_and_where_it_is_from(entity: str, boss: Site) -> None:
    resource = f"r/{next(_numbers)}"
    stored(boss, {"resource": resource}, rpm="10/minute", tpm="1000/minute")
    place = {"entity": entity, "resource": resource}
    form = boss.get("/ui/limits/edit", **place)
    for value in ("rpm", "10/minute", "tpm", "1000/minute"):
        assert f'value="{value}"' in form.text
    assert text_of(form).count("from the resource") == 2
    sent = {"name": ["rpm", "tpm", ""], "spec": ["2/minute", "1000/minute", ""]}
    preview = boss.follow(form, "/ui/limits/edit", 200, **sent)
    assert "rpm 10/minute from the resource 2/minute its own" in text_of(preview)
    assert "tpm 1,000/minute from the resource 1,000/minute from the resource unchanged" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit")
    again = boss.get("/ui/limits/edit", **place)
    assert "stored here" in again.text
    assert text_of(again).count("from the resource") == 1
    assert f'name="inherited" value="{escape("tpm=1000/minute")}"' in again.text
    page = text_of(boss.get(f"/ui/entities/{quote(entity, safe='')}"))
    assert "full · its own" in page
    assert "full · from the resource" in page


def test_what_is_inherited_is_not_stored_as_its_own(entity: str, boss: Site) -> None:
    """Though it was in the form, and though it has changed since the form was made."""
    resource = f"r/{next(_numbers)}"
    stored(boss, {"resource": resource}, rpm="10/minute", tpm="1000/minute")
    form = boss.get("/ui/limits/edit", entity=entity, resource=resource)
    stored(boss, {"resource": resource}, rpm="10/minute", tpm="5000/minute")
    sent = {"name": ["rpm", "tpm"], "spec": ["2/minute", "1000/minute"]}
    preview = boss.follow(form, "/ui/limits/edit", 200, **sent)
    assert "5,000/minute from the resource unchanged" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit")
    assert 'value="5000/minute"' in boss.get("/ui/limits/edit", entity=entity, resource=resource).text
    unchanged = boss.follow(form, "/ui/limits/edit", 422, name=["rpm", "tpm"], spec=["10/minute", "1000/minute"])
    assert "at least one limit must not be inherited" in text_of(unchanged)


def test_without_inheriting_the_form_keeps_what_holds(entity: str, boss: Site) -> None:
    """All of its rows are stored then, so that nothing that is consumed disappears."""
    resource = f"r/{next(_numbers)}"
    stored(boss, {"resource": resource}, rpm="10/minute", tpm="1000/minute")
    place = {"entity": entity, "resource": resource}
    sent = {"name": ["rpm", "tpm"], "spec": ["2/minute", "1000/minute"], "inherit": "no"}
    preview = boss.follow(boss.get("/ui/limits/edit", **place), "/ui/limits/edit", 200, **sent)
    assert "tpm 1,000/minute from the resource 1,000/minute its own" in text_of(preview)
    assert "no longer" not in text_of(preview)
    assert "do not apply here" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit")
    assert '<option value="no" selected>' in boss.get("/ui/limits/edit", **place).text
    assert "own limits only" in text_of(boss.get(f"/ui/entities/{quote(entity, safe='')}"))


def test_names_that_would_disappear_are_named_and_agreed_to(entity: str, boss: Site) -> None:
    place = {"entity": entity, "resource": f"r/{next(_numbers)}"}
    stored(boss, place, rpm="10/minute", extra="1000/minute")
    form = boss.get("/ui/limits/edit", **place)
    preview = boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="10/minute")
    assert f"extra will no longer apply to {entity} on {place['resource']}" in text_of(preview)
    assert "Store these limits, without extra" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit", 200, dropped=[])
    assert 'value="extra"' in boss.get("/ui/limits/edit", **place).text, "nothing is stored that was not agreed to"
    boss.follow(preview, "/ui/limits/edit")
    assert 'value="extra"' not in boss.get("/ui/limits/edit", **place).text
    question = boss.get("/ui/limits/delete", **place)
    assert f"rpm will no longer apply to {entity}" in text_of(question)
    assert "Delete the limits" in boss.follow(question, "/ui/limits/delete", 200, dropped=[]).text
    boss.follow(question, "/ui/limits/delete")


def stored(boss: Site, place: dict[str, str], **limits: str) -> None:
    """As somebody who goes through the form. What is in it already is left out."""
    form = boss.get("/ui/limits/edit", **place)
    preview = boss.follow(form, "/ui/limits/edit", 200, name=list(limits), spec=list(limits.values()))
    boss.follow(preview, "/ui/limits/edit")


def test_system_limits_have_a_policy(boss: Site) -> None:
    form = boss.get("/ui/limits/edit")
    sent = {"name": ["rpm"], "spec": ["60/minute"], "on_unavailable": "allow"}
    preview = boss.follow(form, "/ui/limits/edit", 200, **sent)
    assert "as set in each limiter → allow" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit")
    assert "When the store is unavailable: allow" in text_of(boss.get("/ui/limits"))
    question = boss.get("/ui/limits/delete")
    boss.follow(question, "/ui/limits/delete")
    assert "When the store is away" not in boss.get("/ui/limits").text


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("rpm", "lots", "cannot be read from 'lots'"),
        ("", "1/minute", "lacks one of them"),
        ("rpm", "", "lacks one of them"),
        ("r p m", "1/minute", "is not allowed"),
        ("rpm", "0/minute", "rpm"),
        ("rpm", "1e99/minute", "cannot be read"),
        ("rpm", "9" * 60 + "/minute", "rpm"),
        (HOSTILE, HOSTILE, "cannot be read from"),
    ],
)
def test_bad_limits_are_refused_and_what_was_typed_is_kept(
    name: str, spec: str, words: str, entity: str, boss: Site
) -> None:
    form = boss.get("/ui/limits/edit", entity=entity)
    answer = boss.follow(form, "/ui/limits/edit", 422, name=name, spec=spec)
    assert words in text_of(answer)
    assert 'role="alert"' in answer.text
    assert f'value="{escape(spec)}"' in answer.text  # what was typed is not lost
    assert boss.follow(form, "/ui/limits/edit", 422, name=[], spec=[])


def test_two_at_the_same_limits(entity: str, boss: Site) -> None:
    """The second is told what the first did, and what theirs would do now. It is stored only if they say so again."""
    place = {"entity": entity, "resource": "gpt-4o"}
    first, second = boss.get("/ui/limits/edit", **place), boss.get("/ui/limits/edit", **place)
    boss.follow(boss.follow(first, "/ui/limits/edit", 200, name="rpm", spec="10/minute"), "/ui/limits/edit")
    late = boss.follow(second, "/ui/limits/edit", 409, name="rpm", spec="99/minute")
    assert "The limits have changed" in late.text
    assert "boss" in text_of(late)
    assert "10/minute its own 99/minute its own" in text_of(late)
    assert 'value="10/minute"' in boss.get("/ui/limits/edit", **place).text
    boss.follow(late, "/ui/limits/edit")
    assert 'value="99/minute"' in boss.get("/ui/limits/edit", **place).text


def test_somebody_was_faster_than_the_last_click(entity: str, boss: Site) -> None:
    form = boss.get("/ui/limits/edit", entity=entity)
    previews = [boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec=f"{n}/minute") for n in (1, 2)]
    boss.follow(previews[0], "/ui/limits/edit")
    boss.follow(previews[1], "/ui/limits/edit", 409)
    assert 'value="1/minute"' in boss.get("/ui/limits/edit", entity=entity).text


def test_somebody_was_faster_than_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look and our change: then the store itself says so."""
    app = create_app("memory://")

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        looks = app.dashboard.looks("default")

        async def slow(*args: Any, **kwargs: Any) -> bool:
            await looks.set_limits("ann", [Limit.per_minute("rpm", 7)], actor="someone")
            return await awrite_level(*args, **kwargs)

        monkeypatch.setattr("headgate.service.ui.views.limits.awrite_level", slow)
        form = {"csrf": app.dashboard.anybody.csrf, "entity": "ann", "name": "rpm", "spec": "9/minute"}
        sent = form | {"version": "0", "step": "confirm"}
        answer = await client.post("/ui/limits/edit", data=sent, headers={"origin": "http://localhost"})
        assert await looks.get_limits("ann") == [Limit.per_minute("rpm", 7)]
        return answer

    answer = inside(app, work)
    assert answer.status_code == 409
    assert "7/minute its own default 9/minute its own default" in text_of(answer)
    assert "someone" in answer.text


def test_deleting_what_somebody_else_changed(entity: str, boss: Site) -> None:
    form = boss.get("/ui/limits/edit", entity=entity)
    boss.follow(boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="1/minute"), "/ui/limits/edit")
    question = boss.get("/ui/limits/delete", entity=entity)
    form = boss.get("/ui/limits/edit", entity=entity)
    boss.follow(boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="2/minute"), "/ui/limits/edit")
    boss.follow(question, "/ui/limits/delete", 409)
    boss.follow(boss.get("/ui/limits/delete", entity=entity), "/ui/limits/delete")
    assert "No limits are stored" in boss.get("/ui/limits/delete", 404, entity=entity).text


def test_who_decides_here_knows_at_once(served: ServeProcess, boss: Site) -> None:
    resource = f"r{next(_numbers)}"
    ask = {"entity_id": "ann", "resource": resource, "consume": {"rpm": 1}}
    with served.client("the-secret-token-of-admin") as api:
        api.put(f"/v1/limits/resources/{resource}", json={"limits": ["rpm=1/hour"]})
        assert [api.post("/v1/acquire", json=ask).json()["allowed"] for _ in range(2)] == [True, False]
        form = boss.get("/ui/limits/edit", resource=resource)
        preview = boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="1/hour burst 5")
        boss.follow(preview, "/ui/limits/edit")
        assert api.post("/v1/acquire", json=ask).json()["allowed"]


def test_changes_of_limits_are_put_in_words() -> None:
    before = [Limit.per_minute("a", 100), Limit.per_minute("b", 10), Limit.per_minute("d", 5), Limit.concurrent("s", 4)]
    after = [Limit.per_minute("a", 150, burst=100), Limit.per_minute("c", 1), Limit.per_minute("d", 5)]
    after.append(Limit.concurrent("s", 2))
    found = {change.name: (change.kind, change.words) for change in limit_changes(before, after)}
    assert found == {
        "a": ("changed", "rate +50%"),
        "b": ("removed", ""),
        "c": ("added", ""),
        "d": ("same", ""),
        "s": ("changed", "slots \N{MINUS SIGN}50%"),
    }
    assert grouped("1000000/day burst 2000") == "1,000,000/day burst 2,000"
    assert grouped("acme-2024") == "acme-2024"
    assert [duration(seconds) for seconds in (0.01, 59.9, 60, 3661, 90_000)] == [
        "0.1 s", "59.9 s", "1 min", "1 h 1 min", "1 d 1 h",
    ]  # fmt: skip
