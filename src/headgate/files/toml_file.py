"""A TOML file as nodes. The parser gives the values; a second pass over the text finds their lines."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib import import_module
from typing import Any

from ..core.errors import ValidationError
from .document import Document, Node

try:
    tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
except ImportError as error:
    raise ValidationError("a TOML file needs tomli: pip install 'headgate[http]'") from error

Place = tuple[Any, ...]  # keys and places in lists, from the root down

_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_STRING = r'"""(?:\\.|[^\\])*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:\\.|[^"\\])*"|' + r"'[^']*'"
_KEY = re.compile(rf"(?:[\w-]+|{_STRING})(?:[ \t]*\.[ \t]*(?:[\w-]+|{_STRING}))*", re.DOTALL)
_SCALAR = re.compile(rf"{_STRING}|[^,\]}}#\n]+", re.DOTALL)


def read(text: str, document: Document) -> Node:
    try:
        data = tomllib.loads(text)
        lines = _Lines(text).lines
    except RecursionError:
        document.fail(1, "values are nested too deep")
    except ValueError as error:
        at = _AT.search(str(error))
        line = int(at[1] or text.count("\n") + 1) if at else 1
        document.fail(line, f"this is not TOML: {_AT.sub('', str(error))}")
    return _node(document, data, "the file", (), 1, lines)


def _node(document: Document, value: Any, name: str, place: Place, line: int, lines: dict[Place, int]) -> Node:
    line = lines.get(place, line)
    node = document.node(name, line, len(place))
    if isinstance(value, dict):
        node.value = {key: _node(document, item, key, (*place, key), line, lines) for key, item in value.items()}
    elif isinstance(value, list):
        entry = f"an entry of {name}"
        node.value = [_node(document, item, entry, (*place, at), line, lines) for at, item in enumerate(value)]
    elif isinstance(value, (str, int, float)):
        node.value = value
    else:
        node.value = str(value)
        node.wrong(f"{name} is a date or a time: put it in quotes")
    return node


class _Lines:
    """The line of each value, in a text that the parser has accepted."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._tables: Counter[Place] = Counter()  # of each list of tables, how many there were until here
        here: Place = ()
        while self._skip():
            if self._take("["):
                here = self._header()
            else:
                self._pair(here)

    def _skip(self) -> bool:
        """Go on to what is neither space nor comment, if there is any."""
        self._match(_SPACE)
        return self._at < len(self._text)

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        assert found, f"not TOML, at character {self._at}"
        self._at = found.end()
        return found[0]

    def _take(self, mark: str) -> bool:
        self._skip()
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) * found
        return found

    def _note(self, place: Place) -> None:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        for end in range(1, len(place) + 1):
            self.lines.setdefault(place[:end], self._line)

    def _keys(self) -> list[str]:
        self._skip()
        table: Any = tomllib.loads(self._match(_KEY) + "=0")
        keys = []
        while table:
            ((key, table),) = table.items()
            keys.append(key)
        return keys

    def _header(self) -> Place:
        many = self._take("[")
        *outer, last = self._keys()
        place: Place = ()
        for key in outer:
            place = (*place, key)
            if self._tables[place]:
                place = (*place, self._tables[place] - 1)
        place = (*place, last)
        if many:
            self._tables[place] += 1
            place = (*place, self._tables[place] - 1)
        self._note(place)
        self._take("]]" if many else "]")
        return place

    def _pair(self, table: Place) -> None:
        place = (*table, *self._keys())
        self._note(place)
        self._take("=")
        self._value(place)

    def _value(self, place: Place) -> None:
        self._skip()
        self._note(place)
        if self._take("["):
            entries = 0
            while not self._take("]"):
                self._value((*place, entries))
                self._take(",")
                entries += 1
        elif self._take("{"):
            while not self._take("}"):
                self._pair(place)
                self._take(",")
        else:
            self._match(_SCALAR)
