"""`headgate aws` as people run it, on ministack."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")
pytest.importorskip("boto3")

import yaml

import headgate.aws.stack.cloudformation as cloudformation
from headgate import Limit, SyncRateLimiter
from headgate.aws.stack import Stack, StackFailed, template
from headgate.cli.app import run
from headgate.testing.servers.process import eventually
from local_servers.dynamodb import Engine

LIMITS = [Limit.per_hour("rpm", 100)]


class Cli:
    def __init__(self, endpoint_url: str, folder: Path) -> None:
        self.place = ("--region", "us-east-1", "--endpoint-url", endpoint_url)
        self.folder = folder

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "headgate.cli", "aws", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done

    def inside(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """The same without a process, where a process adds nothing."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            assert run(["aws", *arguments]) == code
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def on_a_terminal(self, arguments: Sequence[str], reply: bytes, code: int) -> str:
        """What is seen, colours and all."""
        terminal, keyboard = pty.openpty()
        os.write(terminal, reply)
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate.cli", "aws", *arguments, *self.place],
            cwd=self.folder,
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
        )
        os.close(keyboard)
        seen = b""
        while True:
            try:
                part = os.read(terminal, 65_536)
            except OSError:  # it has ended
                break
            if not part:
                break
            seen += part
        os.close(terminal)
        assert process.wait(60) == code, seen
        return seen.decode()


@pytest.fixture
def cli(ministack: Engine, aws_credentials: str, tmp_path: Path) -> Cli:
    return Cli(ministack.endpoint_url, tmp_path)


@pytest.fixture
def endpoint(ministack: Engine, aws_credentials: str) -> list[str]:
    return ["--region", "us-east-1", "--endpoint-url", ministack.endpoint_url]


def test_stack_is_deployed_shown_updated_and_deleted(cli: Cli) -> None:
    limits = ("--name", "limits", *cli.place)
    made = cli("deploy", *limits, "--batch-window-seconds", "0", "--tag", "team=platform")
    assert made.stdout.startswith("created: limits\n")
    assert "Table: created\n" in made.stderr
    assert "url" in made.stdout
    assert "policy/limits-AppPolicy" in made.stdout

    assert json.loads(cli("status", *limits, "--json").stdout)["problems"] == []
    url = f"dynamodb://limits?region=us-east-1&endpoint_url={cli.place[3]}"
    with SyncRateLimiter(url) as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 3}, LIMITS)

    with Stack("limits", region="us-east-1", endpoint_url=cli.place[3]) as stack:
        eventually(lambda: "OK" in stack.status().functions[0].runs, "the function has run")
    shown = cli.inside("status", *limits).stdout
    assert shown.startswith("limits: all is well\n")
    assert "expiry on, stream on, backups on, deletion protection off" in shown

    assert cli.inside("update", *limits).stdout.startswith("unchanged: limits\n")
    changed = json.loads(cli.inside("update", *limits, "--deletion-protection", "--json").stdout)
    assert (changed["action"], changed["url"]) == ("updated", url)
    protected = cli.inside("delete", *limits, "--yes", code=2)
    assert "headgate aws update --name limits --no-deletion-protection" in protected.stderr
    cli.inside("update", *limits, "--no-deletion-protection")

    assert "--yes" in cli("delete", *limits, code=2).stderr
    seen = cli.on_a_terminal(["delete", "--name", "limits"], b"limit\n", code=1)
    assert "lost: table limits" in seen
    assert "left: the archive, bucket limits-" in seen
    assert "nothing was deleted" in seen
    seen = cli.on_a_terminal(["delete", "--name", "limits"], b"limits\n", code=0)
    assert "deleted: limits" in seen
    assert "kept: the archive, bucket limits-" in seen
    gone = cli.inside("status", *limits, "--json", code=2)
    assert json.loads(gone.stderr)["error"] == "stack_not_found"


def test_progress_is_live_on_a_terminal(cli: Cli) -> None:
    seen = cli.on_a_terminal(["deploy", "--name", "watched", "--no-functions"], b"", code=0)
    assert "\x1b[32m✓ \x1b[0mTable" in seen
    assert "created: watched" in seen
    with Stack("watched", region="us-east-1", endpoint_url=cli.place[3]) as stack:
        stack.delete()


def test_a_failure_names_what_failed(
    endpoint: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, Any]:
        properties = {"Metrics": [{"Id": "a"}], "ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 1}
        made = template()
        made["Resources"]["Broken"] = {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}
        return made

    monkeypatch.setattr(cloudformation, "template", broken)
    assert run(["aws", "deploy", "--name", "broken", "--no-functions", *endpoint]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Broken: failed: " in told.err
    assert "\nbroken: rolling back\n" in told.err
    last = told.err.splitlines()[-1]
    assert last.startswith("error: stack 'broken' could not be created, and was removed: Broken (")


def test_something_wrong_is_exit_code_1(endpoint: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["aws", "deploy", "--name", "wrong", "--no-functions", "--no-archive", *endpoint]) == 0
    with Stack("wrong", region="us-east-1", endpoint_url=endpoint[3]) as stack:
        stack._aws.client("dynamodb").update_time_to_live(
            TableName="wrong", TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"}
        )
        capsys.readouterr()
        assert run(["aws", "status", "--name", "wrong", *endpoint]) == 1
        told = capsys.readouterr().out
        assert told.startswith("wrong: something is wrong\n")
        assert "problem: expiry of items is off" in told
        stack.delete()


def test_a_stack_without_functions_is_aggregated_here(endpoint: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["aws", "deploy", "--name", "apart", "--no-functions", "--no-archive", "--no-alarms", *endpoint])
    with SyncRateLimiter(f"dynamodb://apart?region=us-east-1&endpoint_url={endpoint[3]}") as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 3}, LIMITS)
    capsys.readouterr()
    assert run(["aws", "aggregate", "--name", "apart", "--once", "--json", *endpoint]) == 0
    assert json.loads(capsys.readouterr().out)["counted"] == 1
    assert run(["aws", "migrate", "--name", "apart", *endpoint]) == 0
    assert "there is nothing to do" in capsys.readouterr().out
    assert run(["aws", "migrate", "--name", "apart", "--dry-run", "--json", *endpoint]) == 0
    assert json.loads(capsys.readouterr().out) is None
    assert run(["aws", "delete", "--name", "apart", "--yes", "--json", *endpoint]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "apart", "kept_bucket": None, "deleted_bucket": None}


def test_the_template_and_the_code_for_those_who_deploy_by_other_means(cli: Cli) -> None:
    assert yaml.safe_load(cli("template").stdout) == json.loads(cli.inside("template", "--json").stdout) == template()
    told = json.loads(cli("export-lambda", "--output", "code.zip", "--json").stdout)
    assert (cli.folder / "code.zip").stat().st_size == told["bytes"]
    with zipfile.ZipFile(cli.folder / "code.zip") as archive:
        assert archive.namelist() == told["files"]


def test_sandbox_is_started_used_shown_and_stopped(cli: Cli) -> None:
    folder = ("--dir", str(cli.folder / "sandbox"))
    assert "no sandbox is running" in cli.inside("sandbox", "status", *folder, code=1).stdout
    up = cli("sandbox", "up", *folder)
    assert up.stdout.startswith("running: table headgate on port ")
    try:
        exported = cli("sandbox", "status", "--export", *folder).stdout
        assert exported.startswith("export HEADGATE_URL='dynamodb://headgate?region=us-east-1&endpoint_url=http")
        script = f'{exported}\n"{sys.executable}" -m headgate.cli check me api --consume rpm=1 --limit rpm=5/minute'
        taken = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, cwd=cli.folder)
        assert taken.stdout.startswith("allowed: me on api\n"), taken
        environment = json.loads(cli.inside("sandbox", "status", "--json", *folder).stdout)["environment"]
        assert environment["HEADGATE_URL"] in exported
    finally:
        down = cli("sandbox", "down", *folder)
    assert down.stdout == "the sandbox was stopped, and its data is removed\n"
    assert cli.inside("sandbox", "down", *folder).stdout == "no sandbox was running\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["deploy", "--name", "1st", "--region", "eu-west-1"], "'1st'"),
        (["deploy", "--memory-mb", "64", "--region", "eu-west-1"], "from 128 to 10240"),
        (["deploy", "--tag", "team", "--region", "eu-west-1"], "KEY=VALUE"),
        (["deploy", "--alarm-topic", "pager", "--region", "eu-west-1"], "ARN of a topic"),
        (["status"], "--region"),
        (["status", "--profile", "nobody"], "nobody"),
        (["export-lambda", "--output", "/nowhere/at/all.zip"], "cannot be written"),
        (["sandbox", "up", "--port", "99999"], "--port"),
    ],
)
@pytest.mark.usefixtures("aws_credentials")
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["aws", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert part in told.err.splitlines()[0]
    assert run(["aws", *arguments, "--json"]) == 2
    assert part in json.loads(capsys.readouterr().err)["message"]


WITHOUT_BOTO3 = """
import sys
sys.modules.update(dict.fromkeys(["boto3", "botocore", "aiobotocore"]))
from headgate.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", [["--help"], ["deploy", "--help"], ["aggregate", "--help"], ["template"]])
def test_help_and_template_need_no_boto3(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_BOTO3, "aws", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["status"], ["aggregate", "--once"], ["deploy"]])
def test_what_needs_boto3_says_how_to_get_it(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_BOTO3, "aws", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'headgate[dynamodb]'" in done.stderr


def test_other_commands_do_without_all_this() -> None:
    script = "import sys, headgate.cli.app; sys.exit(any(name.startswith('headgate.aws') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_the_message_of_a_failure_says_what_is_left() -> None:
    assert str(StackFailed("a", "UPDATE_ROLLBACK_FAILED", "", "")) == (
        "stack 'a' ended as UPDATE_ROLLBACK_FAILED: no resource says why"
    )


def test_whoever_stops_looking_does_not_stop_the_stack(
    endpoint: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "deploy", interrupted)
    assert run(["aws", "deploy", "--name", "limits", *endpoint]) == 130
    assert capsys.readouterr().err.startswith("CloudFormation continues: `headgate aws status --name limits` shows")
