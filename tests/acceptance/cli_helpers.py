"""The command as people run it: a process, its output, its exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from headgate import SyncRateLimiter
from headgate.cli.app import app, run

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = [sys.executable, "-m", "headgate.cli"]


class Cli:
    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.url = url or f"sqlite:///{folder / 'store.db'}"
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        self.environment = kept | {"HEADGATE_URL": self.url}

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0, **environment: str) -> Any:
        return json.loads(self(*arguments, "--json", code=code, **environment).stdout)

    def error(self, *arguments: str, code: int = 2) -> str:
        done = self(*arguments, code=code)
        assert done.stdout == ""
        first = done.stderr.splitlines()[0]
        assert first.startswith("error: ")
        return first.removeprefix("error: ")

    def limiter(self, **settings: Any) -> SyncRateLimiter:
        return SyncRateLimiter(self.url, **settings)

    @contextmanager
    def terminal(self, *arguments: str) -> Iterator[Terminal]:
        """The command on a terminal of its own."""
        terminal, keyboard = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environment | {"TERM": "xterm", "COLUMNS": "80", "LINES": "40", "PYTHONUNBUFFERED": "1"},
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
        )
        os.close(keyboard)
        try:
            yield Terminal(process, terminal)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)


class Inside(Cli):
    """The same without a process for each command: for tests of many, where a process adds nothing."""

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with patch.dict(os.environ, self.environment | environment), redirect_stdout(out), redirect_stderr(err):
            got = run(arguments)
        assert got == code, (got, out.getvalue(), err.getvalue())
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.seen = ""

    def see(self, text: str) -> None:
        """Wait until it has been shown."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            assert self._read(), self.seen

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> int:
        """Wait until it has ended. Its exit code."""
        while self._read():
            pass
        return self.process.wait(60)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], 60)
        try:
            shown = os.read(self._terminal, 65536) if ready else b""
        except OSError:  # nobody has the other end any more
            return False
        self.seen += shown.decode(errors="replace")
        return bool(shown)


def every_command(group: click.Group = app, path: str = "headgate") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command
