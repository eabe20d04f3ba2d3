"""ministack as a process that outlives the one that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path

from ...core.errors import ValidationError
from .errors import StackError

START_SECONDS = 30.0
STOP_SECONDS = 10.0
REGION = "us-east-1"
ACCOUNT = "000000000000"


class ServerDied(StackError):
    """ministack did not start, or ended by itself."""


def launch(folder: Path, port: int) -> int:
    """Start it; returns the process id."""
    if find_spec("ministack") is None:
        raise ValidationError("the sandbox needs ministack: pip install 'headgate[sandbox]'")
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            cwd=folder,
            env=_environment(folder, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C does not reach it, and it can be ended with its children
        )
    process.returncode = 0  # another process may end it, so this one does not wait for it
    return process.pid


def wait_until_ready(folder: Path, port: int, pid: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers(port):
        if not born(pid) or time.monotonic() > deadline:
            written = (folder / "log").read_text(errors="replace")
            end(pid)
            raise ServerDied(f"ministack did not start on port {port}, and wrote: {written[-1000:]}")
        time.sleep(0.05)


def _environment(folder: Path, port: int) -> dict[str, str]:
    # The functions inherit it, so the user's settings for AWS and headgate are removed.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADGATE_"))}
    return kept | {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "TMPDIR": str(folder),
        "STATE_DIR": str(folder / "state"),
        "S3_DATA_DIR": str(folder / "s3"),
        "PERSIST_STATE": "0",
        "S3_PERSIST": "0",
        "USE_SSL": "0",
        "AUTH": "false",
        "LAMBDA_EXECUTOR": "local",
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
    }


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == 200
    except (HTTPException, OSError):
        return False
    finally:
        connection.close()


def born(pid: int) -> str:
    """When a process was started, "" if it does not exist: its id may have been reused."""
    try:
        os.waitpid(pid, os.WNOHANG)  # a child that has ended exists until it is waited for
    except (ChildProcessError, ValueError):
        pass
    found = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return found.stdout.strip()


def end(pid: int) -> None:
    """End it with all processes it has started: the functions are processes too."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, kind)
            os.killpg(pid, signal.SIGCONT)  # a stopped process does not handle signals
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + STOP_SECONDS
        while born(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def free_port(wanted: int | None = None) -> int:
    """A free port, or the wanted one if it is free: a server that listens there would be mistaken for ministack."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted or 0))
        except OSError as error:
            raise ValidationError(f"port {wanted} cannot be used: {error.strerror}") from None
        return int(listener.getsockname()[1])
