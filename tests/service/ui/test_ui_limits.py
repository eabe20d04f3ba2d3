"""Limits on the pages: seen before they are changed, and two people at once."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest
from dashboard_site import HOSTILE, Site, text_of
from markupsafe import escape
from service_process import ServeProcess, inside

from headgate import Limit
from headgate.service.app import create_app
from headgate.service.ui.words import duration, grouped, limit_changes

_numbers = itertools.count()


# Limits


@pytest.mark.parametrize("level", ["entity", "entity_default", "resource"])
def test_limits_are_previewed_and_then_stored(level: str, entity: str, boss: Site) -> None:
    place = {"entity": entity} if level.startswith("entity") else {}
    place |= {} if level == "entity_default" else {"resource": f"r/{next(_numbers)}"}
    form = boss.get("/ui/limits/edit", **place)
    assert "None are stored on this level yet" in form.text
    rows = {"name": ["rpm", "", "tpm"], "spec": ["100/minute burst 150", "", "10000/minute"]}
    preview = boss.follow(form, "/ui/limits/edit", 200, **rows)
    assert "rpm 100/minute burst 150" in text_of(preview).replace("none ", "").replace("none", "")
    assert "Nothing is changed yet" in preview.text
    assert "None are stored on this level yet" in boss.get("/ui/limits/edit", **place).text
    done = boss.follow(preview, "/ui/limits/edit")
    assert done.headers["location"].endswith("?done=limits")
    assert 'role="status"' in boss.get(done.headers["location"]).text
    stored = boss.get("/ui/limits/edit", **place)
    assert 'value="100/minute burst 150"' in stored.text
    assert 'value="10000/minute"' in stored.text
    event = text_of(boss.get("/ui/audit"))
    assert "boss" in event
    assert "10,000/minute" in event


def test_system_limits_have_a_policy(boss: Site) -> None:
    form = boss.get("/ui/limits/edit")
    sent = {"name": ["rpm"], "spec": ["60/minute"], "on_unavailable": "allow"}
    preview = boss.follow(form, "/ui/limits/edit", 200, **sent)
    assert "as each limiter says → allow" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit")
    assert "When the store is away: allow" in text_of(boss.get("/ui/limits"))
    question = boss.get("/ui/limits/delete")
    boss.follow(question, "/ui/limits/delete")
    assert "When the store is away" not in boss.get("/ui/limits").text


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("rpm", "lots", "cannot be read from 'lots'"),
        ("", "1/minute", "is alone"),
        ("rpm", "", "is alone"),
        ("r p m", "1/minute", "is not allowed"),
        ("rpm", "0/minute", "rpm"),
        ("rpm", "1e99/minute", "cannot be read"),
        ("rpm", "9" * 60 + "/minute", "rpm"),
        (HOSTILE, HOSTILE, "cannot be read from"),
    ],
)
def test_limits_that_cannot_be(name: str, spec: str, words: str, entity: str, boss: Site) -> None:
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
    assert "Somebody else was faster" in late.text
    assert "boss" in text_of(late)
    assert "10/minute 99/minute" in text_of(late)
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
        real = looks.set_limits

        async def slow(*args: Any, **kwargs: Any) -> None:
            await real("ann", [Limit.per_minute("rpm", 7)], actor="someone")
            await real(*args, **kwargs)

        monkeypatch.setattr(looks, "set_limits", slow)
        form = {"csrf": app.dashboard.anybody.csrf, "entity": "ann", "name": "rpm", "spec": "9/minute"}
        sent = form | {"version": "0", "step": "confirm"}
        answer = await client.post("/ui/limits/edit", data=sent, headers={"origin": "http://localhost"})
        assert await looks.get_limits("ann") == [Limit.per_minute("rpm", 7)]
        return answer

    answer = inside(app, work)
    assert answer.status_code == 409
    assert "7/minute 9/minute" in text_of(answer)
    assert "someone" in answer.text


def test_deleting_what_somebody_else_changed(entity: str, boss: Site) -> None:
    form = boss.get("/ui/limits/edit", entity=entity)
    boss.follow(boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="1/minute"), "/ui/limits/edit")
    question = boss.get("/ui/limits/delete", entity=entity)
    form = boss.get("/ui/limits/edit", entity=entity)
    boss.follow(boss.follow(form, "/ui/limits/edit", 200, name="rpm", spec="2/minute"), "/ui/limits/edit")
    boss.follow(question, "/ui/limits/delete", 409)
    boss.follow(boss.get("/ui/limits/delete", entity=entity), "/ui/limits/delete")
    assert "There are none" in boss.get("/ui/limits/delete", 404, entity=entity).text


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


def test_changes_in_words() -> None:
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
