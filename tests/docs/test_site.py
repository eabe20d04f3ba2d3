"""The documentation as a site: it builds without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from doc_pages import DOCS, ROOT

ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a link or an anchor that leads nowhere, or a page outside of the menu, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    if built.returncode:
        pytest.fail(built.stdout + built.stderr, pytrace=False)
    return folder


class Page(HTMLParser):
    """Its text, and what a browser fetches for it by itself. A link that somebody has to follow is none of that."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.assets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag != "a" and not (tag == "link" and given.get("rel") in ("canonical", "next", "prev")):
            self.assets += [given[name] or "" for name in ("src", "href", "data", "srcset") if name in given]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {page.relative_to(site): Page(page.read_text()) for page in site.rglob("*.html")}


def test_every_page_is_there(pages: dict[Path, Page]) -> None:
    written = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert written | {Path("contributing.html"), Path("changelog.html")} == pages.keys() - {Path("404.html")}


def test_nothing_comes_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for name, page in pages.items():
        assert page.assets
        assert [asset for asset in page.assets if ELSEWHERE.match(asset)] == [], name
        assert 'class="mermaid"' not in page.text, "its script would come from elsewhere"
    for sheet in site.rglob("*.css"):
        fetched = re.findall(
            r"(?:url\(\s*|@import\s+)[\"']?([^\"')]+)", sheet.read_text().replace("@import url", "url")
        )
        assert [url for url in fetched if ELSEWHERE.match(url)] == [], sheet.name


def test_every_asset_of_the_site_exists(site: Path, pages: dict[Path, Page]) -> None:
    for name, page in pages.items():
        if name != Path("404.html"):  # its paths are those of a server
            for asset in {re.sub(r"[?#].*", "", asset) for asset in page.assets if not asset.startswith("data:")}:
                assert (site / name.parent / asset).exists(), f"{name}: {asset}"


def test_no_bar_inside_code_cuts_a_table(pages: dict[Path, Page]) -> None:
    for name, page in pages.items():
        for row in re.findall(r"<tr>.*?</tr>", page.text, re.DOTALL):
            assert "\\|" not in row, f"{name}: {row}"
            assert not re.search(r"<td[^>]*>[^<]*`", row), f"{name}: a bar has cut some code: {row}"


def test_it_can_be_searched_in_a_folder(site: Path) -> None:
    script = (site / "search/search_index.js").read_text()
    places = {
        entry["location"].partition("#")[0] for entry in json.loads(script.removeprefix("var __index = "))["docs"]
    }
    assert places >= {"index.html", "api.html", "configuration.html", "decisions/0001-the-exact-bucket.html"}
    assert 'iframe-worker.js"' in (site / "decisions/index.html").read_text()  # what searches there
