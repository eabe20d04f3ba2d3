"""Text that cannot be encoded: no way in, and shown by another sign where it was stored before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from service_process import inside

from headgate import SyncRateLimiter, ValidationError
from headgate.declare import read_limits_file
from headgate.limiter.config import entities
from headgate.service.app import create_app

HALF = "\udc80"
HERE = {"origin": "http://localhost"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'limits.db'}"


def store_unchecked(url: str, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """As a version did that refused less."""
    with monkeypatch.context() as unchecked, SyncRateLimiter(url) as limiter:
        unchecked.setattr(entities, "_CHECKS", dict.fromkeys(entities._CHECKS, lambda value: value))
        limiter.create_entity("team", **fields)
        limiter.create_entity("ann", parent_id="team", **fields)


def test_what_was_stored_before_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store_unchecked(url, monkeypatch, name=f"Team {HALF}", metadata={HALF: [{HALF: HALF}], "plan": HALF})
    paths = ("/v1/entities", "/v1/entities/ann", "/v1/entities/team/children", "/v1/audit", "/v1/audit?entity_id=ann")
    pages = ("/ui", "/ui/entities", "/ui/entities/ann", "/ui/entities/ann/edit", "/ui/entities/team", "/ui/audit")

    async def ask(client: httpx.AsyncClient) -> dict[str, httpx.Response]:
        return {path: await client.get(path) for path in (*paths, *pages)}

    answers = inside(create_app(url), ask)
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert answers["/v1/entities/ann"].json()["metadata"]["\ufffd"] == [{"\ufffd": "\ufffd"}]
    assert all("\ufffd" in answer.text for path, answer in answers.items() if path != "/ui")


def test_it_can_be_changed_exported_and_deleted(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_unchecked(url, monkeypatch, metadata={HALF: HALF})
    for name in ("limits.yaml", "limits.toml"):
        run_cli("export", "--url", url, "-o", str(tmp_path / name))
        assert read_limits_file(tmp_path / name).entities["ann"].metadata == {"\ufffd": "\ufffd"}
    run_cli("entity", "get", "ann", "--url", url)
    run_cli("audit", "--url", url)

    async def ask(client: httpx.AsyncClient) -> list[int]:
        changes: list[tuple[str, Any]] = [("PATCH", {"name": "Ann"}), ("PATCH", {"metadata": {}}), ("DELETE", None)]
        answers = [await client.request(method, "/v1/entities/ann", json=body) for method, body in changes]
        return [answer.status_code for answer in answers]

    assert inside(create_app(url), ask) == [200, 200, 204]


def run_cli(*arguments: str | bytes, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headgate.cli", *arguments], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    return done.stderr.decode()


@pytest.mark.parametrize("field", ["name", "metadata"])
def test_no_way_in_by_the_api(url: str, field: str) -> None:
    half = r'"\udc80"' if field == "name" else r'{"a": [{"\udc80": 1}]}'
    as_json = {"content-type": "application/json"}

    async def ask(client: httpx.AsyncClient) -> list[int]:
        made = await client.post("/v1/entities", content=f'{{"entity_id": "e", "{field}": {half}}}', headers=as_json)
        await client.post("/v1/entities", json={"entity_id": "e"})
        changed = await client.patch("/v1/entities/e", content=f'{{"{field}": {half}}}', headers=as_json)
        return [made.status_code, changed.status_code, (await client.get("/v1/entities")).status_code]

    assert inside(create_app(url), ask) == [400, 400, 200]


def test_no_way_in_by_a_form(url: str) -> None:
    app = create_app(url)

    async def ask(client: httpx.AsyncClient) -> list[int]:
        form = {"csrf": app.dashboard.anybody.csrf, "entity_id": "e"}
        sent = [
            await client.post("/ui/new", data=form | {"metadata": json.dumps({"a": [HALF]})}, headers=HERE),
            await client.post("/ui/new", data=form | {"metadata": json.dumps({HALF: 1})}, headers=HERE),
            await client.get("/ui/entities/e"),
        ]
        assert "lone surrogate" in sent[0].text
        return [answer.status_code for answer in sent] + [len((await client.get("/v1/entities")).json()["items"])]

    assert inside(app, ask) == [422, 422, 200, 0]


@pytest.mark.parametrize("option", [b"--metadata=a=\xff", b"--metadata=\xff=a", b"--name=\xff", b"--actor=\xff"])
def test_no_way_in_by_the_command_line(url: str, option: bytes) -> None:
    assert r"\udcff" in run_cli("entity", "create", "e", "--url", url, option, code=2)


def test_no_way_in_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libyaml refuses the escape itself; PyYAML without it does not."""
    monkeypatch.setattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = tmp_path / "limits.yaml"
    for text in (
        'entities:\n  ann:\n    metadata: {a: ["\\ud800"]}\n',
        'entities:\n  ann:\n    metadata: {"\\ud800": 1}\n',
        'entities:\n  ann:\n    name: "\\ud800"\n',
        'rules:\n  - id: a\n    path: "/\\ud800"\n',
        'rules:\n  - id: a\nplans:\n  "\\ud800": {a: 1/day}\n',
    ):
        path.write_text(text)
        with pytest.raises(ValidationError, match="lone surrogate"):
            read_limits_file(path)
