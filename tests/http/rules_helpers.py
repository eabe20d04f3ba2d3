"""Short patterns and paths, what matches by other means than those under test, and what is wrong with a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from headgate import ValidationError
from headgate.files import DocumentError
from headgate.http.rules_file import load_rules


def reference(pattern: str, path: str) -> dict[str, str] | None:
    """The same by a regular expression: fine here, where all is short."""
    expression = ""
    for segment in filter(None, pattern.split("/")):
        name = segment[1:-1] if segment.startswith("{") else None
        if name:
            expression += f"/(?P<{name}>[^/]+)"
        else:
            expression += {"*": "/[^/]+", "**": "(?:/[^/]+)*?"}.get(segment, f"/{re.escape(segment)}")
    found = re.fullmatch(expression, "".join(f"/{segment}" for segment in filter(None, path.split("/"))))
    return found.groupdict() if found else None


SEGMENTS = st.lists(st.sampled_from(["a", "a", "b", "*", "**", "**", "{x}", "{y}"]), max_size=7)
PATTERNS = SEGMENTS.map("/".join).map("/{}".format).filter(lambda path: not re.search(r"(\{.\}).*\1|\*\*/\*\*", path))
PATHS = st.lists(st.sampled_from("aaabbc"), max_size=7).map(lambda segments: "/" + "/".join(segments))


def problems(folder: Path, suffix: str, text: str | bytes, **options: Any) -> list[str]:
    path = folder / f"rules.{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DocumentError) as caught:
        load_rules(path, **options)
    assert isinstance(caught.value, ValidationError)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all(problem.startswith(f"{path}:") for problem in caught.value.problems)
    return [problem.removeprefix(f"{path}:") for problem in caught.value.problems]


def assert_like(found: list[str], expected: list[str]) -> None:
    """Each problem starts as expected."""
    assert [problem[: len(start)] for problem, start in zip(found, expected)] == expected
    assert len(found) == len(expected), found
