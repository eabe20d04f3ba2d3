"""Every ```python block of the documentation is a program of its own, run in an empty folder.

What it prints is held against the comments `# -> ...` on its print lines, if there are any, or against the next block
after `<!-- output -->`. A block marked ```python no-run is not run: for code that needs a network. One with a title is
a file of the tutorial, whose steps are run in order (test_tutorial.py). Where it says redis://localhost:6379/0,
postgresql://localhost:5432/app or dynamodb://headgate?region=us-east-1, a server of the tests is used.
"""

from __future__ import annotations

import ast
import gc
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from doc_pages import BLOCKS, Block

import headgate.stores
import headgate.stores.memory
from conformance_parts import LimiterElsewhere, Threads
from headgate.testing.conformance import StoreConformance

EXPECTED = re.compile(r"^.*\bprint\(.*# -> (.*)$", re.MULTILINE)
OUTPUT = "<!-- output -->"
REDIS = "redis://localhost:6379/0"
POSTGRES = "postgresql://localhost:5432/app"
DYNAMODB = "dynamodb://headgate?region=us-east-1"
PROGRAMS = [block for block in BLOCKS if block.kind == "python" and not block.title]


def execute(block: Block, urls: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a block; its names. Tracebacks show the line of the page. `urls`: of servers, by the URL the page has."""
    source = "\n" * block.line + block.source
    for written, url in (urls or {}).items():
        source = source.replace(written, url)
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(source, str(block.page), "exec", dont_inherit=True), names)
    return names


def shown_after(block: Block) -> list[str]:
    """What the page shows as its output: the next block, if `<!-- output -->` stands before that."""
    following = [other for other in BLOCKS if other.page == block.page and other.line > block.line][:1]
    lines = block.page.read_text().splitlines()
    return [line for other in following if lines[other.line - 2] == OUTPUT for line in other.source.splitlines()]


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
    "block", [block for block in PROGRAMS if block.info != "python no-run"], ids=lambda block: block.name
)
@pytest.mark.usefixtures("alone")
def test_every_python_block_runs_and_prints_what_the_page_shows(
    block: Block, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    urls = {}
    if REDIS in block.source:
        server = request.getfixturevalue("redis_server")
        with server.client() as client:
            client.flushall()
        urls[REDIS] = server.url
    if POSTGRES in block.source:
        url = request.getfixturevalue("postgres_server").url
        urls[POSTGRES] = f"{url}{'&' if '?' in url else '?'}schema=s{uuid4().hex}"
    if DYNAMODB in block.source:
        request.getfixturevalue("aws_credentials")
        urls[DYNAMODB] = request.getfixturevalue("ministack").url(f"t{uuid4().hex}")
    execute(block, urls)
    expected = EXPECTED.findall(block.source) or shown_after(block)
    if expected:
        assert capsys.readouterr().out.splitlines() == expected


def test_few_blocks_are_not_run() -> None:
    odd = [block.name for block in PROGRAMS if block.info not in ("python", "python no-run")]
    assert odd == [], "write ```python, or ```python no-run for what needs a network"
    skipped = [block for block in PROGRAMS if block.info == "python no-run"]
    for block in skipped:
        ast.parse(block.source, block.name)
    assert len(skipped) <= 3, f"too many blocks are not run: {[block.name for block in skipped]}"


class TestTheStoreOfTheGuide(Threads, LimiterElsewhere, StoreConformance):
    """docs/stores.md shows a whole store. It is one."""

    histories = 10
    looks_every = 5
    scenarios_every = 4

    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(headgate.stores, "_registered", {})
        (block,) = [block for block in PROGRAMS if 'register_store("tiny"' in block.source]
        execute(block)
        return "tiny://test"
