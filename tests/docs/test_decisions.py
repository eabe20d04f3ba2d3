"""Decisions have a number, a date and a status; the index has them all; what is superseded says by what."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest
from doc_pages import DOCS

FOLDER = DOCS / "decisions"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
HEAD = re.compile(r"# (?P<number>\d+)\. (?P<title>.+)\n\n(?P<date>\d{4}-\d\d-\d\d) · (?P<status>.+)\n\n")
SUPERSEDED = re.compile(r"superseded by \[(\d+)\]\((\d{4}-[a-z0-9-]+\.md)\)")


class Decision(NamedTuple):
    number: int
    title: str
    date: str
    status: str


def read(page: Path) -> Decision:
    head = HEAD.match(page.read_text())
    assert head, f"{page.name} begins with '# 7. Title', an empty line, and '2026-11-16 · accepted'"
    return Decision(int(head["number"]), head["title"], head["date"], head["status"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_number_date_and_status(page: Path) -> None:
    decision = read(page)
    assert page.name.startswith(f"{decision.number:04}-")
    date.fromisoformat(decision.date)
    check_status(decision)


def check_status(decision: Decision) -> None:
    if decision.status != "accepted":
        superseded = SUPERSEDED.fullmatch(decision.status)
        assert superseded, f"{decision.status!r}: it is 'accepted', or 'superseded by [17](0017-name.md)'"
        successor = FOLDER / superseded[2]
        assert successor.exists(), f"{superseded[2]} is not there"
        assert read(successor).number == int(superseded[1]) > decision.number


def test_numbers_are_given_once() -> None:
    assert [read(page).number for page in PAGES] == list(range(1, len(PAGES) + 1))


def test_the_index_has_them_all() -> None:
    rows = [line for line in (FOLDER / "index.md").read_text().splitlines() if re.match(r"\| \d", line)]
    decisions = [(page.name, read(page)) for page in PAGES]
    assert rows == [f"| {one.number} | [{one.title}]({name}) | {one.date} | {one.status} |" for name, one in decisions]


def test_what_is_superseded_links_to_its_successor() -> None:
    old = read(PAGES[0])
    check_status(old._replace(status=f"superseded by [2]({PAGES[1].name})"))
    for wrong in ("superseded", "draft", "superseded by [99](0099-nothing.md)", f"superseded by [1]({PAGES[0].name})"):
        with pytest.raises(AssertionError):
            check_status(old._replace(status=wrong))
