"""Plain values written as YAML and as TOML, in the many ways one can, remembering on which line everything is."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

Place = tuple[Any, ...]

_BARE = re.compile(r"[a-z][a-z0-9_]*")
_WORDS = ("true", "false", "null")


class Writer:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.text = ""
        self.lines: dict[Place, int] = {}

    def maybe(self) -> bool:
        return self.random.random() < 0.4

    def write(self, text: str) -> None:
        self.text += text

    def note(self, place: Place) -> None:
        self.lines.setdefault(place, self.text.count("\n") + 1)

    def pause(self) -> None:
        """Something between two lines that means nothing."""
        self.write(self.random.choice(["", "", "", "\n", "# a = [ \" ' {\n", "  # b:\n\n"]))

    def scalar(self, value: Any) -> str:
        return json.dumps(value) if isinstance(value, (bool, str)) else repr(value)

    def between(self) -> str:
        """What may stand between the values of a list in brackets."""
        return "\n  # ], [\n  " if self.maybe() else " "

    def listed(self, values: list[Any], place: Place) -> None:
        self.write("[")
        for at, value in enumerate(values):
            self.write((", " if at else "") + self.between())
            self.note((*place, at))
            self.value(value, (*place, at))
        self.write(self.between() + "]")

    def value(self, value: Any, place: Place) -> None:
        raise NotImplementedError


class YamlWriter(Writer):
    def document(self, data: dict[str, Any]) -> str:
        self.pause()
        if data:
            self.block(data, (), "")
        else:
            self.write("{}\n")
        return self.text

    def scalar(self, value: Any) -> str:
        if isinstance(value, str) and _BARE.fullmatch(value) and value not in _WORDS and self.maybe():
            return value
        if isinstance(value, str) and "\n" not in value and self.maybe():
            return "'" + value.replace("'", "''") + "'"
        return super().scalar(value)

    def key(self, key: str) -> str:
        return key if _BARE.fullmatch(key) and self.maybe() else json.dumps(key)

    def value(self, value: Any, place: Place) -> None:
        if isinstance(value, list):
            self.listed(value, place)
        elif isinstance(value, dict):
            self.write("{")
            for at, (key, item) in enumerate(value.items()):
                self.write((", " if at else "") + self.between())
                self.note((*place, key))
                self.write(self.key(key) + ": ")
                self.value(item, (*place, key))
            self.write("}")
        else:
            self.write(self.scalar(value))

    def block(self, value: Any, place: Place, indent: str) -> None:
        """A list or a mapping over several lines, from where the first of them starts."""
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for at, (key, item) in enumerate(entries):
            if at:
                self.pause()
                self.write(indent)
            here = (*place, key)
            self.note(here)
            self.write(self.key(key) + ":" if isinstance(value, dict) else "-")
            if not isinstance(item, (dict, list)) or not item or self.maybe():
                self.write(" ")
                self.inline(item, here)
            elif isinstance(value, dict):
                self.write("\n" + indent + "  ")
                self.block(item, here, indent + "  ")
            else:
                self.write(" ")
                self.block(item, here, indent + "  ")

    def inline(self, value: Any, place: Place) -> None:
        # What goes on over several lines must be indented by more than its block: as far as nothing ever is.
        start = len(self.text)
        self.value(value, place)
        self.text = self.text[:start] + self.text[start:].replace("\n", "\n" + " " * 80) + "\n"


class TomlWriter(Writer):
    def document(self, data: dict[str, Any]) -> str:
        self.pause()
        self.table(data, (), "")
        return self.text

    def key(self, key: str) -> str:
        if _BARE.fullmatch(key) and self.maybe():
            return key
        return f"'{key}'" if "'" not in key and "\n" not in key and self.maybe() else json.dumps(key)

    def scalar(self, value: Any) -> str:
        if isinstance(value, str) and "'" not in value and self.maybe():
            return f"'{value}'" if "\n" not in value else f"'''\n{value}'''"
        if isinstance(value, str) and self.maybe():
            text = value.replace("\\", "\\\\").replace('"""', '""\\"')
            return f'"""\n{text}"""'
        return super().scalar(value)

    def value(self, value: Any, place: Place) -> None:
        if isinstance(value, list):
            self.listed(value, place)
        elif isinstance(value, dict):
            self.write("{")
            for at, (key, item) in enumerate(value.items()):
                self.write(", " if at else " ")
                self.pair(self.key(key), item, (*place, key))
            self.write(" }")
        else:
            self.write(self.scalar(value))

    def pair(self, key: str, value: Any, place: Place) -> None:
        self.note(place)
        if isinstance(value, dict) and value and self.maybe():
            first, *more = value
            if not more:
                return self.pair(f"{key} . {self.key(first)}", value[first], (*place, first))
        self.write(f"{key} = ")
        return self.value(value, place)

    def table(self, data: dict[str, Any], place: Place, header: str) -> None:
        later = []
        for key, value in data.items():
            if isinstance(value, (dict, list)) and self.is_table(value) and self.maybe():
                later.append(key)
                continue
            self.pair(self.key(key), value, (*place, key))
            self.write("\n")
            self.pause()
        for key in later:
            value, name = data[key], f"{header}.{self.key(key)}".lstrip(".")
            if isinstance(value, dict):
                self.section(f"[{name}]", value, (*place, key), name)
            else:
                for at, item in enumerate(value):
                    self.note((*place, key))
                    self.section(f"[[ {name}]]", item, (*place, key, at), name)

    def section(self, header: str, data: dict[str, Any], place: Place, name: str) -> None:
        self.note(place)
        self.write(header + "\n")
        self.pause()
        self.table(data, place, name)

    @staticmethod
    def is_table(value: dict[str, Any] | list[Any]) -> bool:
        return isinstance(value, dict) or (bool(value) and all(isinstance(item, dict) for item in value))
