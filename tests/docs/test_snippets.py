"""The documentation is true: its snippets run, its links lead somewhere, and it leaves nothing out.

Every ```python block of README.md, CONTRIBUTING.md and docs/ is a program of its own, run in an empty folder. It may
await at the top level. What it prints is held against the comments `# -> ...` on its print lines, if there are any.
A block marked ```python no-run is not run: for code that needs a network. Where it says redis://localhost:6379/0 or
dynamodb://headgate?region=us-east-1, a server of the tests is used.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

import headgate
import headgate.http
import headgate.stores
import headgate.stores.memory
from headgate import Lease, RateLimiter
from headgate.testing.conformance import StoreConformance

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)(`{3,})(.*)$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
EXPECTED = re.compile(r"^.*\bprint\(.*# -> (.*)$", re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int  # of the fence
    info: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def split(page: Path) -> tuple[list[Block], str]:
    """The fenced blocks of a page, and the rest of it."""
    blocks: list[Block] = []
    prose: list[str] = []
    inside: list[str] | None = None
    start, info, indent, ticks = 0, "", "", ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if inside is None and fence:
            inside, start, (indent, ticks, info) = [], number, fence.groups()
        elif inside is not None and line.strip() == ticks:
            blocks.append(Block(page, start, info.strip(), "\n".join(inside) + "\n"))
            inside = None
        elif inside is not None:
            inside.append(line.removeprefix(indent))
        else:
            prose.append(line)
    assert inside is None, f"{page.name}:{start}: the block is not closed"
    return blocks, "\n".join(prose)


REDIS = "redis://localhost:6379/0"
DYNAMODB = "dynamodb://headgate?region=us-east-1"
BLOCKS = [block for page in PAGES for block in split(page)[0] if block.info.split()[:1] == ["python"]]


def execute(block: Block, urls: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a block; its names. Tracebacks show the line of the page. `urls`: of servers, by the URL the page has."""
    source = "\n" * block.line + block.source
    for written, url in (urls or {}).items():
        source = source.replace(written, url)
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    names: dict[str, Any] = {"__name__": "snippet"}
    running = eval(code, names)
    if inspect.iscoroutine(running):
        asyncio.run(running)
    return names


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty folder, no stores of other snippets, and no thread left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(headgate.stores, "_registered", {})
    monkeypatch.setattr(headgate.stores.memory, "_named", {})
    before = set(threading.enumerate())
    yield
    gc.collect()  # what was not closed complains now
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive(), f"the snippet left {thread.name} running: close the limiter"


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if "no-run" not in block.info.split()], ids=lambda block: block.name
)
@pytest.mark.usefixtures("alone")
def test_snippet(block: Block, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    urls = {}
    if REDIS in block.source:
        server = request.getfixturevalue("redis_server")
        with server.client() as client:
            client.flushall()
        urls[REDIS] = server.url
    if DYNAMODB in block.source:
        request.getfixturevalue("aws_credentials")
        urls[DYNAMODB] = request.getfixturevalue("ministack").url(f"t{uuid4().hex}")
    execute(block, urls)
    expected = EXPECTED.findall(block.source)
    if expected:
        assert capsys.readouterr().out.splitlines() == expected


def test_every_block_says_what_it_is() -> None:
    odd = [block.name for block in BLOCKS if block.info not in ("python", "python no-run")]
    assert odd == [], "write ```python, or ```python no-run for what needs a network"
    skipped = [block for block in BLOCKS if block.info == "python no-run"]
    for block in skipped:
        ast.parse(block.source, block.name)
    assert len(skipped) <= 3, f"too many blocks are not run: {[block.name for block in skipped]}"


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
    folder = ROOT / "docs"
    linked = {link.partition("#")[0] for link in LINK.findall(split(folder / "index.md")[1])}
    assert {page.name for page in folder.glob("*.md")} - linked == {"index.md"}


def public_methods(kind: type) -> list[str]:
    return [name for name, member in inspect.getmembers(kind) if callable(member) and not name.startswith("_")]


def undocumented(names: list[str], pattern: str) -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    return [name for name in names if not re.search(pattern.format(name), text)]


def test_every_public_name_is_documented() -> None:
    for module in (headgate, headgate.http):
        assert undocumented(list(module.__all__), r"\b{}\b") == [], module.__name__


def test_every_method_is_documented() -> None:
    assert undocumented(public_methods(RateLimiter), r"[.`]{}[(`]") == []
    assert undocumented(public_methods(Lease), r"lease\.{}\b") == []


def test_every_setting_and_argument_is_documented() -> None:
    for function in (RateLimiter.__init__, RateLimiter.acquire, RateLimiter.limit):
        names = [name for name in inspect.signature(function).parameters if name not in ("self", "url")]
        assert undocumented(names, r"`{0}`|\b{0}=") == [], function


class TestTheStoreOfTheGuide(StoreConformance):
    """docs/stores.md shows a whole store. It is one."""

    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(headgate.stores, "_registered", {})
        (block,) = [block for block in BLOCKS if 'register_store("tiny"' in block.source]
        execute(block)
        return "tiny://test"
