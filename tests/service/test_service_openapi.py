"""The OpenAPI document is true, of what is right and of what is wrong; and so is the page made of it."""

from __future__ import annotations

import html.parser
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from service_process import SECRETS, TOKENS, Api, ServeProcess

from headgate.service.app import OPERATIONS
from headgate.service.openapi import document

schemathesis = pytest.importorskip("schemathesis")

# 422: it is of the right form, and cannot be done. 409 and 410: not any more, or not again.
ACCEPTED = ["2xx", "404", "409", "410", "422"]
schema = schemathesis.openapi.from_dict(
    document(OPERATIONS),
    config=schemathesis.Config.from_dict(
        {
            "generation": {"mode": "all"},
            "phases": {"coverage": {"enabled": False}},
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
        }
    ),
)


@schema.parametrize()
@settings(max_examples=4, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_answers_as_described(case: Any, service: ServeProcess) -> None:
    scope = case.operation.definition.raw.get("x-scope")
    headers = {"Authorization": f"Bearer {TOKENS['namespaces' if scope == 'namespaces' else 'admin']}"}
    answer = case.call_and_validate(base_url=service.url, headers=headers)
    assert not any(secret in answer.text for secret in SECRETS)


def test_it_is_what_is_served(api: Api) -> None:
    assert api.get("/openapi.json") == document(OPERATIONS)


class _Seen(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        found = dict(attributes)
        self.ids |= {found["id"]} if "id" in found else set()
        self.links |= {found["href"]} if "href" in found else set()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_that_needs_nothing_else(api: Api) -> None:
    answer = api.http.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    seen = _Seen()
    seen.feed(answer.text)
    assert seen.open == []
    assert not {"script", "img", "link", "iframe"} & set(seen.tags)
    assert {link for link in seen.links if not link.startswith("#")} == {"/openapi.json"}
    assert {link[1:] for link in seen.links if link.startswith("#")} <= seen.ids
    for operation in OPERATIONS:
        assert f"<code>{operation.template}</code>" in answer.text
