"""ministack as a process that goes on when the one that started it has ended."""

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
    """Start it; the process id."""
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
            start_new_session=True,  # Ctrl-C is not for it, and it can be ended with all that it started
        )
    process.returncode = 0  # whoever ends it need not be this process, so nobody here waits for it
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
    # The functions inherit it: nothing of what the user has set for AWS or headgate may reach them.
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
    """When a process was started, or nothing if it is not there: its number may be another's by now."""
    try:
        os.waitpid(pid, os.WNOHANG)  # one of our own that has ended is there until it is asked for
    except (ChildProcessError, ValueError):
        pass
    found = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return found.stdout.strip()


def end(pid: int) -> None:
    """With everything it has started: the functions are processes of their own."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, kind)
            os.killpg(pid, signal.SIGCONT)  # one that is stopped does not notice otherwise
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + STOP_SECONDS
        while born(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def free_port(wanted: int | None = None) -> int:
    """Any that is free, or the one that is wanted: another engine that listens there would be taken for ours."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted or 0))
        except OSError as error:
            raise ValidationError(f"port {wanted} cannot be used: {error.strerror}") from None
        return int(listener.getsockname()[1])
