"""A server as a child process: it ends when told to, at exit, and when whoever started it is killed."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TypeVar

PATIENCE_SECONDS = 60.0

Server = TypeVar("Server", bound="ServerProcess")
Group = TypeVar("Group", bound="ServerGroup")

# Its input ends when nobody holds the other end of the pipe any more, however that process ended.
_WATCHER = 'while read -r line; do pid=$line; done; [ -z "$pid" ] || kill -9 "$pid"; [ -z "$1" ] || rm -rf "$1"'


class NotInstalledError(RuntimeError):
    """A program that the server needs is not on this machine."""


class ServerFailedError(RuntimeError):
    """A server did not start, or did not get where it should."""


def installed(program: str, how: str) -> str:
    """Where a program is; NotInstalledError says how to install it."""
    path = shutil.which(program)
    if path is None:
        raise NotInstalledError(f"{program} is not installed: {how}")
    return path


def eventually(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds; `what` says in the error what did not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailedError(f"after {seconds:g} s still not true: {what}")
        time.sleep(0.01)


def free_port() -> int:
    """A port on 127.0.0.1 that is free, and so is the one 10,000 above it, which the nodes of a cluster also need.

    Both are below the ports that the system hands out to clients: a client that tries again and again to reach a
    killed server would sooner or later get the server's port as its own, and be connected to itself.
    """
    # Not the shared generator: two test processes with the same seed would choose the same ports.
    for port in random.SystemRandom().sample(range(10_000, 20_000), 1000):
        if _is_free(port) and _is_free(port + 10_000):
            return port
    raise ServerFailedError("no free port between 10000 and 20000")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class ServerProcess:
    """A process in a folder, which is a temporary one unless named, with its output in the file `log` there."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder or tempfile.mkdtemp(prefix="headgate-")).absolute()
        self._temporary = folder is None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = subprocess.Popen(
            ["sh", "-c", _WATCHER, "watcher", str(self.folder) if self._temporary else ""],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _open.add(self)

    def __enter__(self: Server) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None or not self.running:
            raise ServerFailedError(f"the server in {self.folder} is not running: call start() first")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server wrote since the folder was made."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in an orderly way (SIGTERM), a paused one too."""
        self._end(signal.SIGTERM, signal.SIGCONT)

    def pause(self) -> None:
        """From now on it takes connections and answers nothing (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it at once, and remove its folder if that is a temporary one."""
        if self not in _open:
            return
        _open.discard(self)
        self.kill()
        self._watcher.kill()
        self._hang_up()
        self._watcher.wait()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if self.running:
            raise ServerFailedError(f"the server in {self.folder} is already running: call stop() or kill() first")
        with open(self.folder / "log", "ab") as log:
            # In a session of its own: Ctrl-C is for the tests, which then end their servers in order.
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._tell_watcher(str(self._process.pid))

    def _end(self, *signals: int) -> None:
        if self._process is None:
            return
        for number in signals:
            self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._tell_watcher("")

    def _tell_watcher(self, pid: str) -> None:
        assert self._watcher.stdin is not None
        try:
            self._watcher.stdin.write(f"{pid}\n".encode())
        except BrokenPipeError:  # somebody killed the watcher, and the server is watched no longer
            pass

    def _disown(self) -> None:
        self._hang_up()
        for process in (self._process, self._watcher):
            if process is not None:
                process.returncode = 0  # to this process they are as good as gone, and nothing to warn about
        self._process = None

    def _hang_up(self) -> None:
        assert self._watcher.stdin is not None
        try:
            self._watcher.stdin.close()
        except BrokenPipeError:
            pass


class ServerGroup:
    """Servers that belong together. A subclass starts them with `_servers`, which ends them in `close`."""

    def __init__(self) -> None:
        self._servers = ExitStack()

    def __enter__(self: Group) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all at once."""
        self._servers.close()


_open: set[ServerProcess] = set()


@atexit.register
def _close_all() -> None:
    for server in list(_open):
        server.close()


def _disown_all() -> None:
    for server in _open:
        server._disown()
    _open.clear()


# A forked child neither ends the servers of its parent nor keeps them alive.
os.register_at_fork(after_in_child=_disown_all)
