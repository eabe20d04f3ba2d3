"""Every fenced block of the documentation is held to something: it runs, or it is read by what would read it.

python and console blocks are run by test_snippets.py and test_tutorial.py. Here: files are loaded, commands are
parsed by the command line itself, and requests to the service are sent.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml
from doc_pages import BLOCKS, DOCS, PAGES, ROOT, TUTORIAL, Block, split

from headgate.cli.app import app
from headgate.declare import read_limits_file
from headgate.http import load_rules
from headgate.service.app import create_app
from headgate.service.envoy.rules import SECTION, read_descriptors
from headgate.service.tokens import load_tokens

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOLD = {  # nothing could check these
    "text": "a picture, a formula, or what a program says",
    "http": "what goes over the wire; tests of the middleware look at it",
    "markdown": "how a page looks",
    "sql": "for an administrator of the server",
}


def load(block: Block, folder: Path) -> None:
    """As YAML or TOML; and what is a file of headgate, as that."""
    found = yaml.safe_load(block.source) if block.kind == "yaml" else tomllib.loads(block.source)
    keys = set(found) if isinstance(found, dict) else set()
    file = folder / f"file.{block.kind}"
    file.write_text(block.source)
    if keys & {"system", "resources", "entities"}:
        read_limits_file(file)
    elif keys and keys <= {"rules", "plans", "descriptors"}:
        read_descriptors(load_rules(file, [SECTION]).sections.get(SECTION))
    elif "tokens" in keys:
        load_tokens(file, {"OPS_TOKEN": "x" * 40})


def commands(source: str) -> Iterator[list[str]]:
    """The words of each command in a script, those within $(...) and behind a pipe too."""
    source, more = re.subn(r"\$\(([^()]*)\)", "WORD", source), re.findall(r"\$\(([^()]*)\)", source)
    for inner in more:
        yield from commands(inner)
    words = shlex.shlex(source[0], posix=True, punctuation_chars="|&;\n")
    words.whitespace = " \t\r"
    words.whitespace_split = True
    command: list[str] = []
    for word in [*words, "\n"]:
        if word and set(word) <= set("|&;\n"):
            if command:
                yield command
            command = []
        else:
            command.append(word)


def check_headgate(words: list[str]) -> None:
    """The command and its options are there. Values are not looked at."""
    command: click.Command = app
    context = click.Context(app)
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found, f"there is no {rest[0]!r} in {' '.join(words)!r}"
        command, rest = found, rest[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    rest = rest[: next((place for place, word in enumerate(rest) if word.startswith((">", "<"))), None)]
    command.make_parser(context).parse_args(rest)


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in words[1:]:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}: no such target"


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for wanted in re.findall(r"headgate\[([^]]+)\]", " ".join(words)):
        assert set(wanted.split(",")) <= set(extras), f"no such extra: {wanted}"


def check_python(words: list[str]) -> None:
    if words[1] == "-m":
        assert importlib.util.find_spec(words[2]), words
    else:
        assert (ROOT / words[1]).exists() or any(block.title == words[1] for block in BLOCKS), words


def check_pytest(words: list[str]) -> None:
    for word in words[1:]:
        assert not word.startswith("tests/") or (ROOT / word).exists(), word


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "headgate": check_headgate,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "pytest": check_pytest,
}
OTHERS = {".", "aws", "cat", "cd", "curl", "docker", "echo", "eval", "export", "jq", "kill", "mkdir", "open", "sed"}
OTHERS |= {"mv", "source", "uvicorn"}


def check_commands(source: str) -> None:
    for words in commands(source):
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            assert words[0] in CHECKS or words[0] in OTHERS, f"is {words[0]!r} a command?"
            CHECKS.get(words[0], lambda words: None)(words)


def check_script(block: Block, folder: Path) -> None:
    check_commands(re.sub(r"(^|\s)#.*", "", block.source.replace("\\\n", " ")))


def check_console(block: Block, folder: Path) -> None:
    assert block.page in TUTORIAL, "only what the tutorial's test types is a console; write ```sh"
    check_script(block._replace(source="\n".join(re.findall(r"^\$ (.*)$", block.source, re.MULTILINE))), folder)


def check_bare(block: Block, folder: Path) -> None:
    """The reference is made of the commands' help: usage, examples, and layouts."""
    assert block.page == DOCS / "cli.md", "say what kind of block it is"
    examples = [line for line in block.source.splitlines() if "headgate " in line and "[OPTIONS]" not in line]
    check_commands("\n".join(examples))


def check_python_block(block: Block, folder: Path) -> None:
    """As it stands: copied into a file, it runs."""
    compile(block.source, block.name, "exec", dont_inherit=True)


def check_signature(block: Block, folder: Path) -> None:
    assert block.page == DOCS / "api.md", "write ```python: only a signature does not run"
    source = re.sub(r"^class (?=.*\()", "def ", block.source.rstrip())
    ast.parse(source + ": ..." if re.match("(async )?def ", source) else source)


KINDS: dict[str, Callable[[Block, Path], Any]] = {
    "": check_bare,
    "bash": check_script,
    "console": check_console,
    "json": lambda block, folder: json.loads(block.source),
    "py": check_signature,
    "python": check_python_block,
    "sh": check_script,
    "toml": load,
    "yaml": load,
}


def test_every_block_is_of_a_known_kind() -> None:
    odd = {block.name: block.kind for block in BLOCKS if block.kind not in KINDS.keys() | TOLD.keys()}
    assert odd == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_what_it_says(page: Path, tmp_path: Path) -> None:
    for block in split(page)[0]:
        try:
            KINDS.get(block.kind, lambda block, folder: None)(block, tmp_path)
        except Exception as error:
            pytest.fail(f"{block.name}: {type(error).__name__}: {error}\n{block.source}", pytrace=False)


def test_typed_blocks_pass_a_strict_type_checker(tmp_path: Path) -> None:
    """Those of the README, and all that show FastAPI."""
    typed = [block for block in BLOCKS if block.kind == "python" and not block.title]
    typed = [block for block in typed if block.page == ROOT / "README.md" or "import FastAPI" in block.source]
    for number, block in enumerate(typed):
        (tmp_path / f"block_{number}.py").write_text(f"# {block.name}\n{block.source}")
    # In a folder of its own, or it would read the settings of this project.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "blocks"), "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_code_hides_in_indentation(page: Path) -> None:
    """Only a fence says what it holds. Deeper lines are of a list, or of an admonition."""
    opener = ""
    lines = split(page)[1].splitlines()
    for before, line in zip(["", *lines], lines):
        if line.startswith("    ") and not before.strip():
            assert re.match(r"\s*([-*+]|\d+\.|!!!|\?\?\?|===) ?", opener), f"put it between fences: {line!r}"
        elif line.strip() and not line.startswith("    "):
            opener = line


def test_the_service_answers_what_its_page_shows(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{id: login, path: /login, limits: 5/minute}]")
    service = create_app("memory://", rules=load_rules(rules))
    blocks = split(DOCS / "service.md")[0]

    async def ask() -> list[str]:
        shown = []
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(service), base_url="http://127.0.0.1:8080"
        ) as client:
            stored = await client.put("/v1/limits/system", json={"limits": ["rpm=60/minute"]})
            assert stored.status_code == 200, stored.text
            for block, following in pairwise(blocks):
                for words in commands(block.source.replace("\\\n", " ")) if block.kind == "bash" else ():
                    if words[0] == "curl" and "127.0.0.1:8080" in words[1]:
                        answer = await client.post(words[1], json=json.loads(words[words.index("--json") + 1]))
                        assert answer.status_code == 200, f"{block.name}: {answer.text}"
                        shown.append(words[1])
                        if following.kind == "json":
                            assert answer.json() == json.loads(following.source), following.name
        return shown

    assert len(asyncio.run(ask())) >= 3
