"""The dashboard of a service with several workers: whoever answers, it is one dashboard."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from dashboard_site import TOKENS, tokens_file
from playwright.sync_api import Browser, expect
from service_process import ServeProcess, clients_by_worker, workers_of
from test_ui_browser import PHONE, browser, somebody  # noqa: F401

from headgate.service.tokens import Token
from headgate.service.ui.session import SESSIONS_PER_TOKEN, SessionFiles, Sessions
from headgate.testing.servers.process import eventually

WISH = {"entity_id": "busy:one", "resource": "r", "consume": {"n": 1}, "limits": ["n=30/hour"]}
TOKEN = Token("ops", "0" * 64, frozenset(["read"]))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServeProcess]:
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    with ServeProcess("--url", url, "--workers", "2", "--tokens", "tokens.yaml", "--read-timeout", "60") as process:
        process.write("tokens.yaml", tokens_file())
        yield process.start()


def by_each(process: ServeProcess, path: str, cookie: str | None) -> list[httpx.Response]:
    """The answer of each worker."""
    cookies = {} if cookie is None else {"cookie": f"headgate_session={cookie}"}
    found = []
    for client in clients_by_worker(process).values():
        with closing(client):
            found.append(client.get(path, headers=cookies))
    return found


def acquire_by_each(process: ServeProcess, times: int) -> None:
    for api in clients_by_worker(process, TOKENS["admin"]).values():
        with closing(api):
            for _ in range(times):
                assert api.post("/v1/acquire", json=WISH).status_code == 200


def test_a_login_is_good_at_every_worker_and_survives_one(process: ServeProcess, browser: Browser) -> None:  # noqa: F811
    with somebody(browser, process.url) as page:
        page.goto("/ui/login")
        page.get_by_label("Token").fill(TOKENS["boss"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.get_by_role("main")).to_contain_text("this service (2 workers)")
        (cookie,) = (one["value"] for one in page.context.cookies() if one["name"] == "headgate_session")
        pages = by_each(process, "/ui/limits/edit?entity=e", cookie)
        assert [one.status_code for one in pages] == [200, 200]
        assert len({re.findall(r'name="csrf" value="([^"]+)"', one.text)[0] for one in pages}) == 1

        acquire_by_each(process, 20)

        def all_told() -> bool:
            answers = [text_of_live(one) for one in by_each(process, "/ui/live", cookie)]
            return all("40 in five minutes" in one and "busy:one" in one for one in answers)

        eventually(all_told, "each worker shows the decisions of both, 40 of them")
        expect(page.get_by_role("region", name="Most refused")).to_contain_text("10")

        os.kill(min(workers_of(process)), signal.SIGKILL)
        eventually(lambda: len(workers_of(process)) == 2, "it is replaced")
        page.goto("/ui/entities")
        expect(page.get_by_role("heading", level=1)).to_have_text("Entities")
        eventually(all_told, "what the dead one counted stays")

        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_title("Log in · headgate")
        assert [one.status_code for one in by_each(process, "/ui", cookie)] == [303, 303]


def text_of_live(answer: httpx.Response) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text))


def test_wrong_logins_are_counted_together(process: ServeProcess) -> None:
    found = []
    for guesser in clients_by_worker(process).values():
        with closing(guesser):
            guesser.headers["origin"] = process.url
            found.append([guesser.post("/ui/login", data={"token": "wrong"}).status_code for _ in range(30)])
            assert guesser.post("/ui/login", data={"token": TOKENS["boss"]}).status_code == 303
    first, second = found
    assert first[:10] == [401] * 10
    assert 429 in first
    assert second.count(429) > 15  # after a moment one more may be tried, but not ten


def test_a_change_at_one_worker_is_soon_known_to_the_other(process: ServeProcess) -> None:
    """Each keeps stored limits for a minute."""
    with process.client(TOKENS["admin"]) as api:
        assert api.put("/v1/limits/resources/r", json={"limits": ["n=5/hour"]}).status_code == 200
    ask = {"entity_id": "e", "resource": "r"}

    def capacities() -> list[int]:
        found = []
        for api in clients_by_worker(process, TOKENS["admin"]).values():
            with closing(api):
                found.append(api.post("/v1/acquire", json=ask).json()["limits"][0]["capacity"])
        return found

    eventually(lambda: capacities() == [5, 5], "both have read the limits")
    with process.client(TOKENS["admin"]) as api:
        assert api.put("/v1/limits/resources/r", json={"limits": ["n=7/hour"]}).status_code == 200
    eventually(lambda: capacities() == [7, 7], "both have read the change")


def test_without_tokens_a_form_of_one_worker_is_good_at_the_other(tmp_path: Path) -> None:
    with ServeProcess("--url", f"sqlite:///{tmp_path / 'limits.db'}", "--workers", "2") as process:
        process.start()
        pages = by_each(process, "/ui/new", None)
        assert len({re.findall(r'name="csrf" value="([^"]+)"', one.text)[0] for one in pages}) == 1


def test_files_of_sessions(tmp_path: Path) -> None:
    """They do not name the sessions, they are only so many, and one that ended is gone for all."""
    here, there = (Sessions(lambda sha256: TOKEN, secret=b"x", stored=SessionFiles(tmp_path)) for _ in range(2))
    opened = [here.open(TOKEN) for _ in range(SESSIONS_PER_TOKEN + 3)]
    assert len(list(tmp_path.iterdir())) == SESSIONS_PER_TOKEN
    assert [there.get(one.session_id) for one in opened[3:]] == opened[3:]
    session = opened[-1]
    kept = " ".join(path.name + path.read_text() for path in tmp_path.iterdir())
    assert session.session_id not in kept
    assert session.csrf not in kept
    there.close(session)
    there.close(session)
    assert here.get(session.session_id) is None
    for wrong in ("", "../x", "\udcff", "a" * 5000, json.dumps({})):
        assert here.get(wrong) is None


def test_on_a_phone_in_the_dark(process: ServeProcess, browser: Browser) -> None:  # noqa: F811
    with somebody(browser, process.url, TOKENS["reader"], viewport=PHONE, color_scheme="dark") as page:
        page.goto("/ui")
        expect(page.get_by_role("main")).to_contain_text("this service (2 workers)")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
