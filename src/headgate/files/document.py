"""A YAML or TOML file as a tree of nodes, each with its line.

A reader asks each node for the value it expects. A mistake is recorded with its line, and reading goes on; `check()` at
the end raises all of them. A value that has a key is on the line of the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from difflib import get_close_matches
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

from ..core.errors import ValidationError

T = TypeVar("T")
Value: TypeAlias = "str | int | float | bool | list[Node] | dict[str, Node] | None"

MAX_BYTES = 1024 * 1024
MAX_NODES = 250_000
MAX_DEPTH = 32
_SHOWN = 50  # problems in a message
_NAMED = 12  # alternatives in a problem
_READERS = {".yaml": "yaml_file", ".yml": "yaml_file", ".toml": "toml_file"}
_UNREADABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class DocumentError(ValidationError):
    """A file cannot be used. `problems` lists every mistake as `file:line: what`."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        more = len(self.problems) - _SHOWN
        return "\n".join(self.problems[:_SHOWN]) + (f"\n(and {more} more)" if more > 0 else "")


class Document:
    """A file, and the mistakes found in it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.max_nodes = MAX_NODES
        self._problems: list[tuple[int, str]] = []
        self._nodes = 0

    def wrong(self, line: int, what: str) -> None:
        self._problems.append((line, what))

    def fail(self, line: int, what: str) -> NoReturn:
        """Record a mistake after which the rest cannot be read."""
        self.wrong(line, what)
        raise self._error()

    def check(self) -> None:
        """Raise DocumentError if anything is wrong."""
        if self._problems:
            raise self._error()

    def _error(self) -> DocumentError:
        return DocumentError([f"{self.file}:{line}: {what}" for line, what in sorted(set(self._problems))])

    def node(self, name: str, line: int, depth: int, value: Value = None) -> Node:
        """A new node. Their number and depth are bounded: a short text can stand for a vast tree."""
        self._nodes += 1
        if self._nodes > self.max_nodes:
            self.fail(line, f"the file has more than {self.max_nodes:,} values")
        if depth > MAX_DEPTH:
            self.fail(line, f"values are nested more than {MAX_DEPTH} deep")
        return Node(self, name, line, value)

    def meant(self, word: str, known: Collection[str]) -> str:
        """Advice for an unknown word: the one that was probably meant, or all that are known."""
        close = get_close_matches(word[:80], known, 1) if len(self._problems) < _SHOWN else []
        if close:
            return f"did you mean {close[0]!r}?"
        names = [*list(known)[:_NAMED], *(["..."] if len(known) > _NAMED else [])]
        return f"use one of {', '.join(names)}" if names else "there are none"


class Node:
    """A value of a file: a string, a number, a boolean or nothing; or a list or mapping of more nodes."""

    __slots__ = ("document", "line", "name", "value")

    def __init__(self, document: Document, name: str, line: int, value: Value) -> None:
        self.document = document
        self.name = name
        self.line = line
        self.value = value

    def wrong(self, what: str) -> None:
        self.document.wrong(self.line, what)

    def plain(self) -> Any:
        """The value without its lines."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return self.value

    def attempt(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
        """The result of a function. None if it raises ValidationError, which is recorded for this line."""
        try:
            return function(*arguments, **named)
        except ValidationError as error:
            self.wrong(str(error))
            return None

    def read(self, reader: Callable[[Any], T]) -> T | None:
        """The result of a function of the plain value. None if there is no value, or it is wrong, which is recorded."""
        if self.value is None:
            self.wrong(f"{self.name} has no value: give it one, or leave it out")
            return None
        return self.attempt(reader, self.plain())

    def text(self) -> str | None:
        return self._typed("a string", str)

    def whole(self) -> int | None:
        return self._typed("a whole number", int)

    def number(self) -> float | None:
        return self._typed("a number", int, float)

    def flag(self) -> bool | None:
        return self._typed("true or false", bool)

    def items(self) -> list[Node]:
        """The nodes of a list."""
        return self._typed("a list", list) or []

    def entries(self) -> dict[str, Node]:
        """The nodes of a mapping with any keys."""
        return self._typed("a mapping", dict) or {}

    def fields(self, known: Collection[str], required: Collection[str] = ()) -> dict[str, Node]:
        """The nodes of a mapping with these keys only."""
        found = self.entries()
        for key in found.keys() - set(known):
            found[key].wrong(f"unknown key {key!r} in {self.name}: {self.document.meant(key, known)}")
        for key in required:
            if isinstance(self.value, dict) and key not in found:
                self.wrong(f"{self.name} lacks {key!r}")
        return {key: node for key, node in found.items() if key in known}

    def _typed(self, what: str, *kinds: type[T]) -> T | None:
        if type(self.value) in kinds:
            return cast(T, self.value)
        self.wrong(f"{self.name} must be {what}, not {self._shown()}")
        return None

    def _shown(self) -> str:
        if isinstance(self.value, (list, dict)):
            return "a list" if isinstance(self.value, list) else "a mapping"
        shown = "nothing" if self.value is None else repr(self.value)
        return shown if len(shown) <= 80 else shown[:77] + "..."


def read_document(path: str | PathLike[str], max_bytes: int = MAX_BYTES) -> Node:
    """The root of a `.yaml`, `.yml` or `.toml` file. DocumentError if it cannot be read at all."""
    file = fspath(path)
    reader = _READERS.get(Path(file).suffix.lower())
    if reader is None:
        raise ValidationError(f"{file!r} must end with one of {', '.join(_READERS)}")
    document = Document(file)
    text = _text(document, max_bytes)
    document.max_nodes = max(MAX_NODES, len(text) // 3)
    root: Node = import_module(f".{reader}", __package__).read(text, document)
    return root


def _text(document: Document, max_bytes: int) -> str:
    try:
        with open(document.file, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise DocumentError([f"{document.file}: it cannot be read: {error.strerror}"]) from None
    if len(data) > max_bytes:
        raise DocumentError([f"{document.file}: it is larger than {max_bytes:,} bytes"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.fail(data.count(b"\n", 0, error.start) + 1, f"byte {data[error.start]:#x} is not UTF-8")
    odd = _UNREADABLE.search(text)
    if odd:
        document.fail(text.count("\n", 0, odd.start()) + 1, f"the character {odd[0]!r} is not allowed in this file")
    return text
