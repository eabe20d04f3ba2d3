"""A slot is free again when the answer is sent, has failed, or nobody is there to read it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException

from sites import Site

from headgate.testing.servers.process import eventually


def test_second_request_for_the_only_slot_is_a_429(site: Site, user: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(site.ask, f"/slow?key={user}", user=user)
        eventually(lambda: site.has_waiting(user), "the first has the slot")
        refused = site.ask("/slow?key=other", user=user)
        assert refused.status == 429
        assert json.loads(refused.body)["violated-policies"] == ["concurrent"]
        site.let_go(user)
        assert first.result().status == 200
    site.eventually_passes(f"/slow?key={user}", user)


def test_a_stream_is_not_held_up_and_holds_its_slot_to_the_end(site: Site, user: str) -> None:
    with site.open(f"/stream?key={user}", user=user) as response:
        assert response.status == 200
        assert response.getheader("ratelimit-policy") == '"concurrent";q=1;qu="concurrent-requests"'
        assert response.read(6) == b"first\n"  # and nothing more is there yet
        assert site.ask(f"/stream?key={user}", user=user).status == 429
        site.let_go(user)
        assert response.read() == b"last\n"
    site.eventually_passes(f"/stream?key={user}", user)


def test_a_client_that_goes_away_frees_its_slot(site: Site, user: str) -> None:
    with site.open("/endless", user=user) as response:
        assert response.read(5) == b"more\n"
        assert site.ask("/endless", user=user).status == 429
    eventually(lambda: passes(site, "/endless", user), "the slot is free")


def test_an_error_of_the_application_stays_its_own_and_frees_its_slot(site: Site, user: str) -> None:
    for _ in range(2):
        eventually(lambda: site.ask("/boom", user=user).status == 500, "the slot is free")
    assert b"boom" not in site.ask("/boom", user=user).body


def test_a_stream_that_fails_frees_its_slot(site: Site, user: str) -> None:
    for _ in range(2):
        eventually(lambda: first_line(site, user) == b"first\n", "the slot is free")


def test_work_after_the_answer_does_not_hold_its_slot(site: Site, user: str) -> None:
    site.let_go("nothing")
    for path in ("/after", "/after-own") if site.name == "fastapi" else ("/after",):
        key = f"{user}{path.replace('/', '-')}"
        with ThreadPoolExecutor(1) as thread:
            first = thread.submit(site.ask, f"{path}?key={key}", user=user)
            try:
                eventually(lambda key=key: site.has_waiting(key), "the work after the answer goes on")
                assert site.ask(f"{path}?key=nothing", user=user).status == 200
            finally:
                site.let_go(key)
            assert first.result().status == 200


def passes(site: Site, path: str, user: str) -> bool:
    with site.open(path, user=user) as response:
        return response.status == 200


def first_line(site: Site, user: str) -> bytes:
    with site.open("/broken", user=user) as response:
        line = response.readline()
        with suppress(HTTPException, OSError):
            response.read()
        return line if response.status == 200 else b""
