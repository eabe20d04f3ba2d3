"""`headgate ui`: a store that others use, looked at from a process of its own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_site import Site
from service_process import ServeProcess

from headgate import Limit, SyncRateLimiter
from headgate.cli.app import run
from headgate.testing.servers.process import eventually


class UiProcess(ServeProcess):
    def start(self) -> UiProcess:
        command = [sys.executable, "-m", "headgate.cli", "ui", "--json", *self._arguments]
        self._launch(command, self._environment)
        eventually(lambda: "}" in self.log or not self.running, "the dashboard is there")
        return self

    @property
    def dashboard(self) -> str:
        return str(json.loads(self.log[: self.log.index("}") + 1])["dashboard"])


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'limits.db'}"


@pytest.fixture
def site(store: str) -> Iterator[Site]:
    with UiProcess("--url", store, "--bind", "127.0.0.1:0") as process:
        with Site(process.start().dashboard.removesuffix("/ui")) as site:
            yield site
        assert process.end() == 0


def test_what_others_use_is_seen(site: Site, store: str) -> None:
    with SyncRateLimiter(store) as limiter:
        limiter.create_entity("acme", name="Acme")
        limiter.set_limits("acme", [Limit.per_hour("rpm", 10)], "gpt-4o")
        for _ in range(10):
            limiter.try_acquire("acme", "gpt-4o", {"rpm": 1})
        page = site.get("/ui")
        assert "This process makes no decisions" in page.text
        assert 'aria-label="rpm: 0 of 10 left"' in page.text
        assert "Acme" in site.get("/ui/entities").text
        site.csrf = re.findall(r'name="csrf" value="([^"]+)"', site.get("/ui/new").text)[0]
        site.post("/ui/entities/acme/reset", resource="gpt-4o")
        assert limiter.get_buckets("acme") == []
        assert {event.actor for event in limiter.get_audit_events("acme")} == {limiter.actor}  # who is at this machine
    assert site.http.get("/v1/entities/acme").status_code == 404
    assert site.http.get("/").headers["location"] == "/ui"


def test_it_is_for_this_machine_only(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ui", "--url", store, "--bind", "0.0.0.0:0"]) == 2
    said = capsys.readouterr().err
    assert "can be reached from other machines" in said
    assert "headgate serve --tokens FILE" in said, "it has no option --tokens itself"
