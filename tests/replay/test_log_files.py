"""Logs are read line by line: what is written is read, what is wrong is said with its line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import ValidationError
from headgate.limiter.observe.request_log import log_line
from headgate.replay import LogError, LoggedRequest, RequestLogFile
from headgate.replay.log import LONGEST_LINE, BadLines

START = 1_700_000_000_000
GOOD: dict[str, Any] = {"at": START, "entity": "e", "resource": "r", "consume": {"rpm": 1}}

requests = st.builds(
    lambda at, entity, resource, consume, allowed: (START + at, entity, resource, consume, allowed),
    st.integers(0, 10**9),
    st.text(min_size=1),
    st.text(min_size=1),
    st.dictionaries(st.text(min_size=1), st.one_of(st.integers(1, 10**12), st.just(0.125)), min_size=1),
    st.sampled_from([None, True, False]),
)


def written(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def read(path: str, bad: BadLines | None = None) -> list[tuple[Any, ...]]:
    return [tuple(request[:5]) for request in RequestLogFile(path, bad)]


@given(st.lists(requests, max_size=20), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, made: list[Any], compressed: bool) -> None:
    made.sort(key=lambda one: one[0])
    path = tmp_path_factory.mktemp("log") / "requests"
    data = "".join(log_line(*one) for one in made).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert read(str(path)) == made


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        (START, START),
        (START + 0.9, START),
        ("2023-11-14T22:13:20Z", START),
        ("2023-11-14T22:13:20.125+00:00", START + 125),
        ("2023-11-15T00:13:20+02:00", START),
        ("2023-11-14T22:13:20", START),
        ("2023-11-14", START - START % 86_400_000),
    ],
)
def test_every_spelling_of_a_moment_is_read(tmp_path: Path, at: object, ms: int) -> None:
    assert read(written(tmp_path / "log", GOOD | {"at": at}))[0][0] == ms


WRONG: list[tuple[object, str]] = [
    ("{", "not JSON"),
    ("[" * 100_000, "longer than 65,536 bytes|no JSON"),
    ("\udcff", "not JSON"),
    ("x" * (3 * LONGEST_LINE), "longer than 65,536 bytes"),
    ([1], r"must be an object .* not \[1\]"),
    ({**GOOD, "at": None}, "at must be a time"),
    ({**GOOD, "at": True}, "at must be a time .* not true"),
    ({**GOOD, "at": -1}, "at must be a time .* not -1"),
    ({**GOOD, "at": 1e300}, "at must be a time"),
    ('{"at": NaN, "entity": "e", "resource": "r", "consume": {"rpm": 1}}', "at must be a time"),
    ({**GOOD, "at": "yesterday"}, 'at "yesterday" is not a time'),
    ({"at": START, "resource": "r", "consume": {"rpm": 1}}, "entity is missing"),
    ({**GOOD, "entity": 7}, "entity must be something like .* not 7"),
    ({**GOOD, "resource": ""}, "resource must be something"),
    ({**GOOD, "consume": {}}, "consume must be something"),
    ({**GOOD, "consume": [1]}, r"consume must be something .* not \[1\]"),
    ({**GOOD, "allowed": "yes"}, 'allowed must be true or false, not "yes"'),
    ({**GOOD, "allowed": 1}, "allowed must be true or false, not 1"),
    ({"headgate_log": 1, "sample": 0}, "sample must be a number above 0"),
]


@pytest.mark.parametrize(("line", "why"), WRONG)
def test_a_bad_line_is_named(tmp_path: Path, line: object, why: str) -> None:
    path = tmp_path / "log"
    data = (line if isinstance(line, str) else json.dumps(line)).encode("utf-8", "surrogateescape")
    good = json.dumps(GOOD).encode()
    path.write_bytes(b"\n".join([good, b"", data, good]))
    with pytest.raises(LogError, match=f"log:3: .*({why})"):
        read(str(path))
    bad = BadLines(skip=True)
    assert len(read(str(path), bad)) == 2
    assert bad.count == 1
    assert f"{path}:3: " in bad.first


def test_requests_a_little_out_of_order_are_sorted_and_others_refused(tmp_path: Path) -> None:
    """A little is put right, more is refused."""
    moments = [0, 3000, 1000, 1000, 7999, 4000, 9000]
    lines = [GOOD | {"at": START + ms, "entity": f"e{number}"} for number, ms in enumerate(moments)]
    found = read(written(tmp_path / "log", *lines))
    assert [(one[0] - START, one[1]) for one in found] == [
        (0, "e0"), (1000, "e2"), (1000, "e3"), (3000, "e1"), (4000, "e5"), (7999, "e4"), (9000, "e6"),
    ]  # fmt: skip
    with pytest.raises(LogError, match=r"log:8: this is 5\.001 s earlier .* sort the file by time"):
        read(written(tmp_path / "log", *lines, GOOD | {"at": START + 3999}))


def test_a_sample_is_known(tmp_path: Path) -> None:
    log = RequestLogFile(written(tmp_path / "log", {"headgate_log": 1, "sample": 0.25}, GOOD))
    assert [request.entity_id for request in log] == ["e"]
    assert log.sample == 0.25


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"missing\.jsonl' cannot be read: No such file"):
        read(str(tmp_path / "missing.jsonl"))
    with pytest.raises(LogError, match="cannot be read: Is a directory"):
        read(str(tmp_path))
    whole = gzip.compress(b"".join(log_line(START, f"entity-{n}", "r", {"rpm": 1}).encode() for n in range(9999)))
    for data in (whole[: len(whole) // 2], whole[:1000] + bytes(100) + whole[1100:]):
        (tmp_path / "cut.gz").write_bytes(data)
        with pytest.raises(ValidationError, match=r"cut\.gz"):
            read(str(tmp_path / "cut.gz"))


def test_it_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for number in range(5000):
            file.write(log_line(START + number * 100, "someone", "r", {"rpm": 1, "text": 10**300}))
    tracemalloc.start()
    assert sum(1 for _ in RequestLogFile(str(path))) == 5000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000


def test_a_log_is_read_from_standard_input_plain_or_gzipped(tmp_path: Path) -> None:
    code = "from headgate.replay import RequestLogFile; print(sum(1 for _ in RequestLogFile('-')))"
    lines = f"{json.dumps(GOOD)}\n" * 3
    for data in (lines.encode(), gzip.compress(lines.encode())):
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True, timeout=60)
        assert done.stdout == b"3\n"


def test_a_request_knows_its_file_and_line() -> None:
    assert LoggedRequest(START, "e", "r", {"rpm": 1}, None, "a.jsonl", 7).place == "a.jsonl:7"
