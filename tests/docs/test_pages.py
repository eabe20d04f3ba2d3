"""The pages hang together: their links lead somewhere, none is off the map, and nothing public is left out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from doc_pages import DOCS, PAGES, ROOT, split

import headgate
import headgate.declare
import headgate.http
import headgate.metrics
import headgate.replay
import headgate.testing
from headgate import Lease, RateLimiter

GUIDES = [page for page in PAGES if page.name not in ("api.md", "CHANGELOG.md")]  # api.md has everything anyway
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", split(page)[1], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(split(page)[1]):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link!r} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in slugs(target), f"{link!r}: no such heading"


def test_every_page_is_on_the_map() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(split(DOCS / "index.md")[1])}
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}


def test_the_map_of_the_code_is_true() -> None:
    """Every file that docs/architecture.md names is in its room."""
    room = ""
    rows = re.findall(r"^\| ?([\w/]*) \| (`.*?) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    for named, files in rows:
        room = named or room
        for file in re.findall(r"`([^`]+)`", files):
            assert (ROOT / "src/headgate" / room / file).exists(), f"{room}: there is no {file}"


def public_methods(kind: type) -> list[str]:
    return [name for name, member in inspect.getmembers(kind) if callable(member) and not name.startswith("_")]


def undocumented(names: list[str], pattern: str) -> list[str]:
    text = "\n".join(page.read_text() for page in GUIDES)
    return [name for name in names if not re.search(pattern.format(name), text)]


def test_every_public_name_is_documented() -> None:
    for module in (headgate, headgate.declare, headgate.http, headgate.metrics, headgate.replay, headgate.testing):
        assert undocumented(list(module.__all__), r"\b{}\b") == [], module.__name__


def test_every_method_is_documented() -> None:
    assert undocumented(public_methods(RateLimiter), r"[.`]{}[(`]") == []
    assert undocumented(public_methods(Lease), r"lease\.{}\b") == []


def test_every_setting_and_argument_is_documented() -> None:
    for function in (RateLimiter.__init__, RateLimiter.acquire, RateLimiter.limit):
        names = [name for name in inspect.signature(function).parameters if name not in ("self", "url")]
        assert undocumented(names, r"`{0}`|\b{0}=") == [], function
