"""A YAML file as nodes. Plain words mean what they mean in YAML 1.2: `yes` and `2024-01-01` are strings."""

from __future__ import annotations

import re
from typing import Any

from ..core.errors import ValidationError
from ..core.text import check_text
from .document import Document, Node, Value

try:
    import yaml
except ImportError as error:
    raise ValidationError("a YAML file needs PyYAML: pip install 'headgate[http]'") from error

_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_WHOLE = re.compile(r"[-+]?\d{1,100}")
_NUMBER = re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?")


def read(text: str, document: Document) -> Node:
    try:
        return _Reader(text, document).root()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        document.fail(mark.line + 1 if mark else 1, f"this is not YAML: {problem}")


class _Reader:
    """Makes nodes of the parser's events. It constructs only strings, numbers, lists and dicts."""

    def __init__(self, text: str, document: Document) -> None:
        self._document = document
        self.events = iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        self._anchored: dict[str, Node] = {}

    def root(self) -> Node:
        self._next()  # the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            return self._document.node("the file", 1, 0)
        root = self._node(self._next(), "the file", 0)
        self._next()  # the end of the document
        more = self._next()
        if not isinstance(more, yaml.StreamEndEvent):
            self._document.fail(_line(more), "a second document starts here: a file has only one")
        return root

    def _next(self) -> Any:
        return next(self.events)

    def _node(self, event: Any, name: str, depth: int, line: int | None = None) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._copy(self._known(event), name, depth, line or _line(event))
        if event.tag is not None:
            self._document.wrong(_line(event), f"the tag {event.tag!r} is not supported: write the value without it")
        node = self._document.node(name, line or _line(event), depth)
        if isinstance(event, yaml.ScalarEvent):
            node.attempt(check_text, str(event.value), name)  # an escape can write what no file can hold
            node.value = _scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node.value = self._items(name, depth + 1)
        else:
            node.value = self._entries(depth + 1)
        if event.anchor is not None:
            self._anchored[event.anchor] = node  # only now, so that no value is a part of itself
        return node

    def _items(self, name: str, depth: int) -> list[Node]:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, f"an entry of {name}", depth))
        return items

    def _entries(self, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, line = self._key(event), _line(event)
            value = self._node(self._next(), key, depth, line)
            if key in entries:
                self._document.wrong(line, f"the key {key!r} is repeated; it is first on line {entries[key].line}")
            entries.setdefault(key, value)
        return entries

    def _key(self, event: Any) -> str:
        key = self._node(event, "a key", 0)
        if isinstance(event, yaml.ScalarEvent):
            return str(event.value)
        return key.text() or ""

    def _known(self, event: Any) -> Node:
        if event.anchor not in self._anchored:
            self._document.fail(_line(event), f"unknown anchor *{event.anchor}: it must end before this line")
        return self._anchored[event.anchor]

    def _copy(self, node: Node, name: str, depth: int, line: int) -> Node:
        value: Value = node.value
        copy = self._document.node(name, line, depth)
        if isinstance(value, list):
            value = [self._copy(item, item.name, depth + 1, item.line) for item in value]
        elif isinstance(value, dict):
            value = {key: self._copy(item, key, depth + 1, item.line) for key, item in value.items()}
        copy.value = value
        return copy


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _scalar(event: Any) -> Value:
    text = str(event.value)
    if event.implicit[1]:  # in quotes
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
