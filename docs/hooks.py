"""What the site has besides the pages of docs/: files of the repository around it, and every decision in the menu."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
# By where they are in the repository, as links there say; and where they are in the site.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/results/benchmarks.svg": "assets/benchmarks.svg",
    "src/headgate/service/ui/static/icon.svg": "assets/icon.svg",
}
LINK = re.compile(r"(\]\()([^)#:\s]+)")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")


def on_config(config: Any) -> Any:
    (explanation,) = [section["Explanation"] for section in config.nav if "Explanation" in section]
    (decisions,) = [entry["Decisions"] for entry in explanation if "Decisions" in entry]
    decisions += sorted(f"decisions/{page.name}" for page in (ROOT / "docs/decisions").glob("0*.md"))
    return config


def on_files(files: Any, config: Any) -> Any:
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files outside docs/ lead to their pages in the site, and links from them into docs/ do too."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # the menu of one page
    source = next((source for source, target in OUTSIDE.items() if target == page.file.src_uri), None)
    folder = posixpath.dirname(source or f"docs/{page.file.src_uri}")

    def moved(link: re.Match[str]) -> str:
        wanted = posixpath.normpath(posixpath.join(folder, link[2]))
        found = OUTSIDE.get(wanted) or wanted.removeprefix("docs/")
        return link[1] + posixpath.relpath(found, posixpath.dirname(page.file.src_uri))

    return ROW.sub(_with_bars, LINK.sub(moved, markdown))


def _with_bars(row: re.Match[str]) -> str:
    """A bar in the code of a table has to be escaped on code hosts, and must not be here."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])
