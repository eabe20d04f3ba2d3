"""The pages hang together: their links lead somewhere, none is off the map, and nothing public is left out."""

from __future__ import annotations

import inspect
import re
import sys
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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GUIDES = [page for page in PAGES if page.name not in ("api.md", "CHANGELOG.md")]  # api.md has everything anyway
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]
RAW = HOME.replace("github.com", "raw.githubusercontent.com")


def links_of(page: Path) -> list[str]:
    return [inline or defined for inline, defined in LINK.findall(split(page)[1])]


def in_repository(page: Path, link: str) -> Path | None:
    """The file that a link leads to, if that is one of ours."""
    for base in (f"{HOME}/blob/main/", f"{RAW}/main/"):
        if link.startswith(base):
            return ROOT / link.removeprefix(base)
    return None if re.match(r"[a-z]+:", link) else (page.parent / link if link else page).resolve()


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", split(page)[1], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = in_repository(page, path)
        if target is None:
            continue
        assert target.exists(), f"{link!r} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in slugs(target), f"{link!r}: no such heading"


def test_readme_has_no_relative_link() -> None:
    """A package index shows it too, and there they would lead nowhere."""
    assert [link for link in links_of(ROOT / "README.md") if not link.startswith("https://")] == []


def test_every_short_link_of_the_readme_is_defined() -> None:
    prose = re.sub(r"`[^`]*`", "", split(ROOT / "README.md")[1])
    defined = set(re.findall(r"^\[([^\]]+)\]: ", prose, re.MULTILINE))
    used = {label or text for text, label in re.findall(r"(?<!!)\[([^\]]*)\](?:\[([^\]]+)\]|(?![(:\[]))", prose)}
    assert used == defined


def test_urls_of_the_project_lead_to_its_home() -> None:
    assert HOME == "https://github.com/headgate/headgate"
    for name, url in PROJECT["urls"].items():
        assert url.startswith(HOME), name
        target = in_repository(ROOT, url) if "/blob/" in url else ROOT
        assert target is not None
        assert target.exists(), name


def test_every_page_is_on_the_map() -> None:
    linked = {link.partition("#")[0] for link in links_of(DOCS / "index.md")}
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}


def test_glossary_is_sorted_and_every_term_leads_to_a_page() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| .+\. \| (.*) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) == (DOCS / "glossary.md").read_text().count("\n| **")
    terms = [term for term, _ in rows]
    assert terms == sorted(set(terms))
    assert [term for term, page in rows if not LINK.search(page)] == []


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
