"""The pages of the documentation, taken apart: fenced blocks, and the prose around them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
TUTORIAL = [DOCS / name for name in ("tutorial.md", "tutorial-quota.md", "tutorial-api.md", "tutorial-operating.md")]
FENCE = re.compile(r"^( *)(`{3,})(.*)$")
TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    page: Path
    line: int  # of the fence
    info: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def kind(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def title(self) -> str | None:
        """The file that the reader is to write it to."""
        title = TITLE.search(self.info)
        return title and title[1]


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


BLOCKS = [block for page in PAGES for block in split(page)[0]]
