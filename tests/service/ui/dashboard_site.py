"""The dashboard as a browser without scripts sees it."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
from service_process import ServeProcess

from headgate.service.tokens import hashed

SCOPES = {
    "boss": ["admin", "namespaces"],
    "admin": ["admin"],
    "reader": ["read"],
    "decider": ["decide"],
    "late": ["admin"],
}
TOKENS = {name: f"the-secret-token-of-{name}" for name in SCOPES} | {"elsewhere": "the-secret-token-of-elsewhere"}
HOSTILE = """<script>alert(1)</script>"><img src=x onerror=alert(1)>'&amp;{{7*7}}"""

_CSRF = re.compile(r'name="csrf" value="([^"]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


def path_of(entity_id: str, *rest: str) -> str:
    return "/".join(["/ui/entities", quote(entity_id, safe=""), *rest])


def text_of(answer: httpx.Response) -> str:
    """What is read, without the markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2])))


def tokens_file() -> str:
    entries: list[dict[str, Any]] = [
        {"name": name, "sha256": hashed(TOKENS[name]), "scopes": scopes} for name, scopes in SCOPES.items()
    ]
    entries[-1]["expires"] = "2020-01-31"
    entries.append(
        {"name": "elsewhere", "sha256": hashed(TOKENS["elsewhere"]), "scopes": ["admin"], "namespace": "elsewhere"}
    )
    return json.dumps({"tokens": entries})


def started(*options: str) -> ServeProcess:
    process = ServeProcess("--url", "memory://", "--tokens", "tokens.yaml", *options)
    process.write("tokens.yaml", tokens_file())
    return process.start()


class Site:
    """Somebody at the dashboard, logged in with a token."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.http = httpx.Client(base_url=address, headers={"origin": address}, timeout=30, verify=False)
        self.csrf = ""
        if token is not None:
            answer = self.http.post("/ui/login", data={"token": token})
            assert answer.status_code == 303, answer.text
            self.csrf = _CSRF.findall(self.get("/ui").text)[0]

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()

    def get(self, path: str, status: int = 200, **query: str) -> httpx.Response:
        answer = self.http.get(path, params=query or None)
        assert answer.status_code == status, answer.text
        check_headers(answer)
        return answer

    def post(self, path: str, status: int = 303, **fields: Any) -> httpx.Response:
        answer = self.http.post(path, data={"csrf": self.csrf, **fields})
        assert answer.status_code == status, answer.text
        check_headers(answer)
        return answer

    def follow(self, page: httpx.Response, path: str, status: int = 303, **fields: Any) -> httpx.Response:
        """Send a form of a page, with what is hidden in it."""
        hidden: dict[str, list[str]] = {}
        for name, value in _HIDDEN.findall(page.text.partition("<main")[2]):
            hidden.setdefault(unescape(name), []).append(unescape(value))
        return self.post(path, status, **(hidden | fields))


def check_headers(answer: httpx.Response) -> None:
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert not any(name.startswith("access-control-") for name in answer.headers)
    assert "the-secret-token" not in answer.text
    assert "Traceback" not in answer.text
    assert "memory://" not in answer.text
    assert "style=" not in answer.text
    for hostile in ("<script>alert", "<img src=x", "49}}"):
        assert hostile not in answer.text
