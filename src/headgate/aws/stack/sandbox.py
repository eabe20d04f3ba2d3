"""The whole stack on this machine: ministack emulates AWS, the functions really run, and nothing leaves the machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ValidationError
from . import ministack
from .cloudformation import OnEvent
from .errors import StackError
from .options import StackOptions
from .stack import Stack

KEYS = ("test", "test")


@dataclass(frozen=True)
class SandboxStatus:
    """`state` is running, stopped, died (it ended by itself) or hung (it does not answer)."""

    state: str
    folder: str
    port: int | None = None
    pid: int | None = None
    name: str | None = None

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def endpoint_url(self) -> str | None:
        return f"http://127.0.0.1:{self.port}" if self.running else None

    @property
    def url(self) -> str | None:
        """The URL of the store."""
        if not self.running:
            return None
        return f"dynamodb://{self.name}?region={ministack.REGION}&endpoint_url={self.endpoint_url}"

    @property
    def log(self) -> str:
        return str(Path(self.folder) / "log")

    @property
    def environment(self) -> dict[str, str]:
        """The variables that programs need to use it."""
        if self.url is None or self.endpoint_url is None:
            return {}
        access_key, secret = KEYS
        return {
            "HEADGATE_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": ministack.REGION,
        }

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "url": self.url, "log": self.log, "environment": self.environment}


class Sandbox:
    """One per folder, which holds all its files. It loses all data when it ends."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        self._state = self.folder / "sandbox.json"
        self._lock = self.folder / "sandbox.lock"

    def up(
        self,
        name: str = "headgate",
        *,
        port: int | None = None,
        options: StackOptions | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> SandboxStatus:
        """Start it if it does not run, and update its stack. Returns when it can be used."""
        self._make_folder()
        with self._alone():
            found = self.status()
            if found.running:
                _check_same(found, name, port)
                self._deploy(found, options, on_event)
                return found
            self._end(found)
            try:
                found = self._start(name, port)
                self._deploy(found, options, on_event)
            except BaseException:
                self._end(self.status())
                raise
        return found

    def down(self) -> bool:
        """End it and remove its files. Returns whether it was running."""
        if not self._lock.exists():
            return False
        with self._alone():
            found = self.status()
            self._end(found)
            shutil.rmtree(self.folder, ignore_errors=True)
        return found.state != "stopped"

    def status(self) -> SandboxStatus:
        try:
            kept = json.loads(self._state.read_text())
            pid, port, name, born = int(kept["pid"]), int(kept["port"]), str(kept["name"]), str(kept["born"])
        except (OSError, ValueError, KeyError, TypeError):
            return SandboxStatus("stopped", str(self.folder))
        state = "died"
        if ministack.born(pid) == born:
            state = "running" if ministack.answers(port) else "hung"
        return SandboxStatus(state, str(self.folder), port, pid, name)

    def stack(self, status: SandboxStatus | None = None) -> Stack:
        """The stack in it. Close it after use."""
        status = status or self.status()
        if not status.running or status.name is None:
            raise StackError(f"the sandbox is {status.state}: start it with `headgate aws sandbox up`")
        return Stack(status.name, region=ministack.REGION, endpoint_url=status.endpoint_url, keys=KEYS)

    def _deploy(self, found: SandboxStatus, options: StackOptions | None, on_event: OnEvent) -> None:
        with self.stack(found) as stack:
            stack.deploy(options or StackOptions(batch_window_seconds=0), on_event=on_event)

    def _start(self, name: str, port: int | None) -> SandboxStatus:
        chosen = ministack.free_port(port)
        pid = ministack.launch(self.folder, chosen)
        self._state.write_text(json.dumps({"pid": pid, "port": chosen, "name": name, "born": ministack.born(pid)}))
        ministack.wait_until_ready(self.folder, chosen, pid)
        return self.status()

    def _end(self, found: SandboxStatus) -> None:
        if found.pid is not None and found.state in ("running", "hung"):
            ministack.end(found.pid)
        self._state.unlink(missing_ok=True)

    def _make_folder(self) -> None:
        """The folder is removed with the sandbox, so it must have no other files."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()) and not self._lock.exists():
                raise ValidationError(f"folder {str(self.folder)!r} has other files in it: use an empty one")
        except OSError as error:
            raise ValidationError(f"folder {str(self.folder)!r} cannot be used: {error.strerror}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevents two processes from starting two sandboxes. The lock ends with its process."""
        try:
            import fcntl
        except ImportError:
            raise ValidationError("the sandbox runs on Linux and macOS only") from None
        while True:
            with open(self._lock, "a") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                # The previous owner may have removed it with the folder.
                if self._is_there(held.fileno()):
                    yield
                    return
            self._make_folder()

    def _is_there(self, held: int) -> bool:
        try:
            return os.path.samestat(os.fstat(held), os.stat(self._lock))
        except FileNotFoundError:
            return False


def _check_same(found: SandboxStatus, name: str, port: int | None) -> None:
    if found.name != name or port not in (None, found.port):
        raise ValidationError(
            f"a sandbox is running already, with the table {found.name!r} on port {found.port}: stop it first with "
            "`headgate aws sandbox down`"
        )
