"""The engines that the tests of the DynamoDB store rely on."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from dynamodb_clients import adding, create_table, total

from headgate.testing.servers.process import eventually
from local_servers.dynamodb import (
    DynamoDBLocal,
    Dynoxide,
    Engine,
    Ministack,
    NotInstalledError,
    ServerFailedError,
    aws_environment,
)

SERVERS = Path(__file__).parent
ENGINES = {"ministack": Ministack, "dynamodb_local": DynamoDBLocal, "dynoxide": Dynoxide}

pytestmark = pytest.mark.usefixtures("dynamodb_wanted", "aws_credentials")


def lives(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() != "" and not state.startswith("Z")


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def tables(engine: Engine, **settings: Any) -> list[str]:
    with closing(engine.client(**settings)) as client:
        return list(client.list_tables()["TableNames"])


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> type[Engine]:
    """A kind of engine, of which one is there to be compared with."""
    request.getfixturevalue(request.param)
    return ENGINES[request.param]


class TestEngine:
    def test_every_engine_updates_and_reads_an_item(self, dynamodb_engine: Engine) -> None:
        with closing(dynamodb_engine.client()) as client:
            table = create_table(client)
            client.update_item(**adding(table, 3))
            client.update_item(**adding(table, 4))
            assert total(client, table) == 7

    def test_its_url_leads_to_it(self, dynamodb_engine: Engine) -> None:
        url = urlsplit(dynamodb_engine.url("my.table", namespace="a b&c"))
        assert (url.scheme, url.netloc) == ("dynamodb", "my.table")
        assert parse_qs(url.query) == {
            "region": ["us-east-1"],
            "endpoint_url": [f"http://127.0.0.1:{dynamodb_engine.port}"],
            "namespace": ["a b&c"],
        }

    def test_the_access_key_is_a_place_of_ones_own(self, ministack: Engine, dynamodb_local: Engine) -> None:
        for engine in (ministack, dynamodb_local):
            with closing(engine.client()) as client:
                table = create_table(client)
            assert table in tables(engine)
            assert table not in tables(engine, aws_access_key_id="123456789012")

    def test_engine_is_paused_resumed_killed_and_started_again(self, kind: type[Engine]) -> None:
        with kind() as engine:
            port, pid = engine.port, engine.pid
            impatient = Config(read_timeout=0.5, retries={"total_max_attempts": 1})
            with closing(engine.client()) as client, closing(engine.client(config=impatient)) as hasty:
                create_table(client)
                engine.pause()
                with pytest.raises(ReadTimeoutError):
                    hasty.list_tables()
                engine.resume()
                assert len(client.list_tables()["TableNames"]) == 1
                engine.kill()
                assert not lives(pid)
                with pytest.raises(EndpointConnectionError):
                    client.list_tables()
                engine.start()
                assert engine.port == port
                assert tables(engine) == []
                pid = engine.pid
                engine.pause()
                engine.stop()
            assert not engine.running
            assert not lives(pid)
            assert is_free(port)
        assert not engine.folder.exists()

    def test_one_that_fails_shows_what_it_wrote(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        program = tmp_path / "node_modules/@dynoxide/any/dynoxide"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho it is Monday >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("HEADGATE_ENGINES", str(tmp_path))
        with pytest.raises(ServerFailedError, match="dynoxide did not start, and wrote:\nit is Monday"):
            Dynoxide()


FUNCTION = """
import os, pathlib, time
import boto3

def handler(event, context):
    if "busy" in event:
        pathlib.Path(event["busy"]).touch()
        time.sleep(100)
    return {"pid": os.getpid(), "tables": boto3.client("dynamodb").list_tables()["TableNames"]}
"""


def run_function(engine: Engine) -> Any:
    """What a function answers that has looked for tables, and is now busy with something else."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("index.py", FUNCTION)
    with closing(engine.client("lambda")) as client:
        client.create_function(
            FunctionName="look",
            Runtime="python3.12",
            Role="arn:aws:iam::000000000000:role/any",
            Handler="index.handler",
            Code={"ZipFile": archive.getvalue()},
            Timeout=200,
        )
        with closing(client.invoke(FunctionName="look")["Payload"]) as payload:
            answer = json.loads(payload.read())
        busy = engine.folder / "busy"
        client.invoke(FunctionName="look", InvocationType="Event", Payload=json.dumps({"busy": str(busy)}))
        eventually(busy.exists, "the function is busy")
    return answer


class TestNothingIsLeft:
    """When the process that started an engine is killed."""

    BEGINNING = """
import os, signal, sys
sys.path.append("..")
from local_servers.dynamodb import DynamoDBLocal, Dynoxide, Ministack

def report(*pids):
    print(engine.pid, engine.folder, *pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

    def check(self, program: str) -> None:
        command = [sys.executable, "-W", "error", "-c", self.BEGINNING + program]
        ended = subprocess.run(command, cwd=SERVERS, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, "")
        engine, folder, *others = ended.stdout.split()
        try:
            for pid in map(int, [engine, *others]):
                eventually(lambda pid=pid: not lives(pid), "it has ended")
            eventually(lambda: not Path(folder).exists(), "its folder is gone")
        finally:
            for pid in map(int, [engine, *others]):
                if lives(pid):
                    os.kill(pid, signal.SIGKILL)

    def test_engine_its_function_and_its_folder_go_with_a_killed_process(self, ministack: Engine) -> None:
        self.check(
            "from test_dynamodb_engines import run_function\nengine = Ministack()\nreport(run_function(engine)['pid'])"
        )


class TestNotInstalled:
    def test_engine_that_was_not_fetched_says_how_to_get_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("HEADGATE_ENGINES", str(tmp_path))
        for kind in (DynamoDBLocal, Dynoxide):
            with pytest.raises(NotInstalledError, match=f"^{kind.name} is not in {tmp_path.name}: `make servers`"):
                kind()

    def test_missing_java_is_named_with_its_version(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NotInstalledError, match=r"^java is not installed: Java 17"):
            DynamoDBLocal()

    def test_missing_ministack_is_named_with_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("local_servers.dynamodb.engines.find_spec", lambda name: None)
        with pytest.raises(NotInstalledError, match=r"pip install 'headgate\[sandbox\]'"):
            Ministack()


class TestEnvironment:
    def test_the_tests_of_a_file_have_an_account(self, aws_credentials: str) -> None:
        assert os.environ["AWS_ACCESS_KEY_ID"] == aws_credentials
        assert len(aws_credentials) == 12
        assert aws_credentials.isdigit()

    def test_it_holds_nothing_of_the_users_and_is_put_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_PROFILE", "mine")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "my-key")
        with aws_environment("123456789012"):
            assert "AWS_PROFILE" not in os.environ
            assert os.environ["AWS_ACCESS_KEY_ID"] == "123456789012"
        assert (os.environ["AWS_PROFILE"], os.environ["AWS_ACCESS_KEY_ID"]) == ("mine", "my-key")

    def test_a_key_that_an_engine_refuses(self) -> None:
        with pytest.raises(ValueError, match="access key 'a-b'"), aws_environment("a-b"):
            pass
