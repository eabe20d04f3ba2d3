"""Values as PostgreSQL reads and writes them in text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def number(value: int | None) -> bytes | None:
    return None if value is None else b"%d" % value


def numbers(values: Iterable[int | None]) -> bytes:
    return ("{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}").encode()


def texts(values: Iterable[str]) -> bytes:
    return ("{" + ",".join([f'"{value.translate(_ESCAPED)}"' for value in values]) + "}").encode()


def read_numbers(text: bytes) -> Sequence[int]:
    return [int(value) for value in text[1:-1].split(b",")] if len(text) > 2 else []
