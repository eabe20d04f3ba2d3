"""PostgreSQL and PgBouncer refuse to run as root: root starts them as another user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from headgate.testing.servers.process import NotInstalledError, installed

_OTHERS = ("postgres", "nobody")


def _other_user() -> pwd.struct_passwd | None:
    """None: the user that this process runs as will do."""
    if os.geteuid() != 0:
        return None
    for name in _OTHERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NotInstalledError(f"root cannot run a database server, and there is none of the users {', '.join(_OTHERS)}")


def as_server_user(*command: str) -> list[str]:
    """The command, run by a user who may run a server."""
    user = _other_user()
    if user is None:
        return list(command)
    setpriv = installed("setpriv", "apt-get install util-linux, or start as another user than root")
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


def hand_over(path: Path) -> None:
    """Let that user own a file or folder."""
    user = _other_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)
