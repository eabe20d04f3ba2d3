"""The tutorial works: its files are written, its commands typed, in order, and they answer what it shows.

A block with a title is a file. In a ```console block, lines after `$ ` are typed into one shell, and the rest is what
comes out. `...` stands for anything. Times are not compared, nor is the width of tables, which follows from them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import TUTORIAL, Block, split

END = "@@"
PORTS = ("8000", "8080")
TIME = re.compile(r"(\b\d[\d.]* (s|min|h|d)\b ?)+|(?<=t=)\d+|(?<=retry-after: )\d+|\d{4}-\d\d(-\d\d)?( [\d:]{5,8})?")


class Shell:
    """A terminal: what is exported, or left running, stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: _free_port() for port in PORTS}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment | {"PATH": path, "COLUMNS": "120", "PYTHONWARNINGS": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def here(self, text: str) -> str:
        """With ports that are free."""
        for port, free in self.ports.items():
            text = text.replace(f":{port}", f":{free}").replace(f"--port {port}", f"--port {free}")
        return text

    def type(self, command: str, lines_at_least: int) -> str:
        """What it prints until it ends; of one that is left running, so many lines, and then it has to listen."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        command = self.here(command)
        stdin.write(f"{command}\n")
        stdin.flush()
        lines = []
        if command.endswith("&"):
            lines = [stdout.readline() for _ in range(lines_at_least)]
            _wait_for(next(port for port in self.ports.values() if port in command))
        stdin.write(f"echo; echo {END}\n")
        stdin.flush()
        for line in iter(stdout.readline, f"{END}\n"):
            assert line, f"the shell ended at {command!r}"
            lines.append(line)
        return "".join(lines).rstrip("\n")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _wait_for(port: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(port)), 1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens on {port}"
            time.sleep(0.05)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def steps(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it answers."""
    for step in re.split(r"^\$ ", block.source, flags=re.MULTILINE)[1:]:
        command, _, answer = step.partition("\n")
        yield command, answer


def plain(text: str) -> str:
    text = "\n".join(" ".join(line.split()) for line in TIME.sub("(time)", text).strip().splitlines())
    return re.sub("─+", "─", re.sub("[━╸]+", "━", text))


def agrees(shown: str, answer: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in plain(shown).split("..."))
    return re.fullmatch(pattern, plain(answer), re.DOTALL) is not None


def test_every_step_of_the_tutorial_answers_as_shown(shell: Shell) -> None:
    for block in (block for page in TUTORIAL for block in split(page)[0]):
        if block.title:
            (shell.folder / block.title).write_text(shell.here(block.source))
        elif block.kind == "console":
            for command, shown in steps(block):
                answer = shell.type(command, shown.count("\n"))
                if not agrees(shell.here(shown), answer):
                    pytest.fail(f"{block.name}: {command}\n{answer}\nand not\n{shown}", pytrace=False)


def test_comparing_answers_allows_elisions_and_waits_and_nothing_else() -> None:
    assert agrees("wait 20 min\n...\n{'a': 1, ...", "wait 19 min 59.9 s\n1\n2\n{'a': 1, 'b': 2}")
    assert not agrees("3 left, wait 20 min", "2 left, wait 20 min")
    assert not agrees("one", "one\ntwo")
    assert not agrees("", "Traceback")
