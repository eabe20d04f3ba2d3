"""Writing a declaration as a file, which reads back as the same declaration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from ..core.errors import ValidationError
from .declaration import Declaration

Format: TypeAlias = Literal["yaml", "toml"]

_WIDTH = 100
# Words that every YAML parser reads as strings, limits, and hours. Everything else is quoted.
_PLAIN = re.compile(
    r"[A-Za-z][\w./@-]*(?: [A-Za-z][\w./@-]*)*"
    r"|\d+(?:\.\d+)?(?:/\w+(?: burst \d+(?:\.\d+)?| resets(?: [\w:/+-]+)+| from first use)?| concurrent ttl \w+)"
    r"(?: alert(?: [\d.]+%)+)?"
    r"|[a-z]{3}(?:-[a-z]{3})? \d\d:\d\d-\d\d:\d\d",
    re.ASCII,
)
_NOT_PLAIN = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')


def write_limits(declaration: Declaration, format: Format = "yaml") -> str:
    """The text of a `.yaml` or `.toml` file that reads back as this declaration."""
    written = declaration.as_dict()
    lines = _toml(written) if format == "toml" else _yaml(written, "")
    return "".join(f"{line}\n" for line in lines).lstrip("\n") or ("" if format == "toml" else "{}\n")


# YAML


def _yaml(value: Mapping[str, Any] | list[Any], indent: str) -> Iterator[str]:
    entries: Any = value.items() if isinstance(value, Mapping) else ((None, item) for item in value)
    for key, item in entries:
        head = f"{indent}-" if key is None else f"{indent}{_yaml_text(key)}:"
        short = _flow(item)
        if short is not None and len(head) + len(short) < _WIDTH:
            yield f"{head} {short}"
        elif key is None and isinstance(item, Mapping):
            first, *rest = _yaml(item, f"{indent}  ")
            yield f"{head} {first.lstrip()}"
            yield from rest
        else:
            yield head
            yield from _yaml(item, f"{indent}  ")


def _flow(value: Any) -> str | None:
    """On one line; None if it is nested too deeply."""
    if isinstance(value, Mapping):
        items = {key: _plain(item) for key, item in value.items()}
        shown = ", ".join(f"{_yaml_text(key)}: {text}" for key, text in items.items())
        return None if None in items.values() else f"{{{shown}}}"
    if isinstance(value, list):
        texts = [_plain(item) for item in value]
        return None if None in texts else f"[{', '.join(map(str, texts))}]"
    return _plain(value)


def _plain(value: Any) -> str | None:
    if isinstance(value, (Mapping, list)):
        empty = "{}" if isinstance(value, Mapping) else "[]"
        return None if value else empty
    return _yaml_scalar(value)


def _yaml_scalar(value: Any) -> str:
    return _yaml_text(value) if isinstance(value, str) else json.dumps(value)


def _yaml_text(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN else _quoted(text)


def _quoted(text: str) -> str:
    """In double quotes, as both YAML and TOML read them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{text!r} has characters that cannot be written to a file") from None
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\{character}" if character in '"\\' else f"\\u{ord(character):04x}"


# TOML


def _toml(written: Mapping[str, Any]) -> Iterator[str]:
    """A table for each entry of a section; deeper values are on one line."""
    sections = {key: value for key, value in written.items() if isinstance(value, (Mapping, list)) and value}
    yield from _entries({key: value for key, value in written.items() if key not in sections})
    for key, value in sections.items():
        yield from _section(_toml_key(key), value)


def _section(name: str, value: Mapping[str, Any] | list[Any]) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from ("", f"[[{name}]]", *_entries(item))
    elif all(isinstance(item, Mapping) for item in value.values()):
        for entry, item in value.items():
            yield from ("", f"[{name}.{_toml_key(entry)}]", *_entries(item))
    else:
        yield from ("", f"[{name}]", *_entries(value))


def _entries(entries: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entries.items():
        yield f"{_toml_key(key)} = {_toml_value(value)}"


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_key(key)} = {_toml_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if value is None:
        raise ValidationError("the declaration contains a null, which TOML does not have: write YAML instead")
    return _quoted(value) if isinstance(value, str) else json.dumps(value)
