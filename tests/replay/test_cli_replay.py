"""`headgate replay` as people run it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headgate.cli.app import run
from headgate.limiter.ids import to_stored_id
from headgate.limiter.observe.request_log import log_line

START = 1_700_000_000_000
LIMITS = "system:\n  limits: {rpm: 3/minute}\nentities:\n  vip: {limits: {rpm: 100/minute}}\n"


class Shell:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        (folder / "limits.yaml").write_text(LIMITS)

    def log(self, *asked: tuple[int, str, bool | None], name: str = "log.jsonl") -> None:
        text = "".join(log_line(START + s * 1000, who, "chat", {"rpm": 1}, allowed) for s, who, allowed in asked)
        path = self.folder / name
        path.write_bytes(gzip.compress(text.encode())) if name.endswith(".gz") else path.write_text(text)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert run(["replay", *arguments]) == code
        output = self._capsys.readouterr()
        return output.out if code != 2 else output.err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return Shell(tmp_path, capsys)


PLAY = ("--log", "log.jsonl", "--limits", "limits.yaml")


def test_who_would_be_refused(shell: Shell) -> None:
    shell.log(*[(number, "acme", True) for number in range(6)], *[(number, "vip", None) for number in range(6, 12)])
    told = shell(*PLAY)
    assert told.splitlines() == [
        "entity  requests  refused  share  newly  first at             longest wait  because of",
        "─" * 86,
        "acme           6        3  50.0%      3  2023-11-14 22:13:23          17 s  rpm       ",
        "",
        "12 requests of 2 entities, 2023-11-14 22:13:20 to 2023-11-14 22:13:31",
        "3 would be refused (25.00%), of 1 entity: rpm 3 times",
        "compared with the log: 3 refused that were allowed, 0 allowed that were refused",
    ]
    found = shell.json(*PLAY, "--top", "1")
    assert (found["requests"], found["refused"], found["newly_refused"]) == (12, 3, 3)
    assert [entity["entity_id"] for entity in found["entities"]] == ["acme"]


@pytest.mark.parametrize(("share", "code"), [("24%", 1), ("25%", 0), ("0.25", 0), ("0", 1), ("100%", 0)])
def test_fail_above_sets_the_exit_code(shell: Shell, share: str, code: int) -> None:
    shell.log(*[(number, "acme", None) for number in range(4)])
    shell(*PLAY, "--fail-above", share, code=code)


def test_picture_of_a_replay_is_written_as_svg(shell: Shell) -> None:
    shell.log(*[(number, "acme", True) for number in range(6)])
    shell(*PLAY, "-o", "report.svg")
    assert "acme" in (shell.folder / "report.svg").read_text()
    ElementTree.parse(shell.folder / "report.svg")
    assert "cannot be written" in shell(*PLAY, "-o", "missing/report.svg", code=2)


def test_what_was_left_out_is_said(shell: Shell) -> None:
    shell.log((0, "acme", None))
    with (shell.folder / "log.jsonl").open("a") as file:
        file.write('{"headgate_log": 1, "sample": 0.1}\nnonsense\n')
        file.write(log_line(START, "acme", "chat", {"usd": 1}))
        file.write(log_line(START, "bad id", "chat", {"rpm": 1}))
    (shell.folder / "limits.yaml").write_text(LIMITS + "rules:\n  - {id: all, path: /**}\n")
    assert "log.jsonl:3: this is not JSON" in shell(*PLAY, code=2)
    told = shell(*PLAY, "--skip-bad")
    assert "1 consume nothing that is limited, and pass" in told
    assert "2 lines were skipped, the first: log.jsonl:3: this is not JSON" in told
    assert "the log has 10.00% of the entities" in told
    assert "plans and rules apply to HTTP requests, and are not replayed" in told


def test_several_logs_are_merged_by_time(shell: Shell) -> None:
    shell.log((0, "acme", None), (2, "acme", None), name="a.jsonl")
    shell.log((1, "acme", None), (3, "acme", None), name="b.jsonl.gz")
    found = shell.json("--log", "a.jsonl", "--log", "b.jsonl.gz", "--limits", "limits.yaml")
    assert (found["requests"], found["refused"]) == (4, 1)
    shell.log()
    assert shell(*PLAY) == "the log contains no requests\n"


def test_hashed_ids_of_a_log_meet_the_limits_of_plain_ids(shell: Shell) -> None:
    hashed = to_stored_id(True)("vip")
    shell.log(*[(0, hashed, None)] * 10)
    assert shell.json(*PLAY)["refused"] == 7
    assert shell.json(*PLAY, "--hash-entity-ids")["refused"] == 0


def test_generated_log_is_the_same_for_the_same_seed(shell: Shell) -> None:
    made = ("--generate", "made.jsonl", "--entities", "5", "--rate", "1", "--for", "10m", "--seed", "3")
    told = shell(*made)
    assert told.endswith(" requests written to made.jsonl\n")
    first = (shell.folder / "made.jsonl").read_text()
    assert shell.json(*made) == {"requests": first.count("\n"), "file": "made.jsonl"}
    assert (shell.folder / "made.jsonl").read_text() == first
    found = shell.json(*made, "--limits", "limits.yaml")
    assert found["requests"] == first.count("\n")
    assert found["refused"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "no log: use --log"),
        (("--log", "log.jsonl"), "no limits: use --limits"),
        (("--log", "missing.jsonl", "--limits", "limits.yaml"), "'missing.jsonl' cannot be read"),
        (("--log", "log.jsonl", "--limits", "missing.yaml"), "missing.yaml"),
        ((*PLAY, "--fail-above", "much"), "'much' is not a share: write 1% or 0.01"),
        ((*PLAY, "--fail-above", "101%"), "'101%' is not a share"),
        (("--generate", "x.jsonl", "--for", "long"), "'long' is not a duration"),
        (("--generate", "x.jsonl", "--for", ""), "'' is not a duration"),
        (("--generate", "x.jsonl", "--rate", "-1"), "rate must be from"),
        (("--generate", "missing/x.jsonl"), "'missing/x.jsonl' cannot be written"),
    ],
)
def test_bad_arguments_of_replay_are_refused_with_the_reason(
    shell: Shell, arguments: tuple[str, ...], why: str
) -> None:
    shell.log((0, "acme", None))
    assert why in shell(*arguments, code=2)
