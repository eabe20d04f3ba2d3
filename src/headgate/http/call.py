"""A request as rules see it, whatever framework it came through."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..core.errors import ValidationError


class BadPath(ValidationError):
    """A path that servers read in different ways: no rule can be trusted to hold for what it leads to."""


_NOTHING: Any = {}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class HttpCall(ABC):
    """`path` is as rules are written: decoded, without what servers ignore. `params` are those of the rule's path.

    `native` is what the framework itself has: a scope, an environ, a request. `caller` is who calls, once known.
    """

    __slots__ = ("caller", "known", "method", "native", "params", "path", "sent_path")

    def __init__(self, method: str, sent_path: str, native: Any) -> None:
        self.method = method
        self.sent_path = sent_path
        self.path = clean(sent_path)
        self.native = native
        self.params: Mapping[str, str] = {}
        self.caller: str | None = None
        self.known: dict[str, Any] = _NOTHING

    @abstractmethod
    def headers(self, name: str) -> list[str]:
        """All values of a header, as they came. The name in small letters."""

    def header(self, name: str) -> str | None:
        """The one value of a header. Several are as good as none: nobody knows which the server believes."""
        values = self.headers(name)
        return values[0] if len(values) == 1 else None

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The address of whoever is connected to the server; None if it is no network connection."""

    @property
    @abstractmethod
    def user(self) -> str | None:
        """Who the framework says is logged in."""


def clean(path: str) -> str:
    """What servers ignore does not lead around a rule: `//login`, `/login/` and `/login;x` are `/login`."""
    if not path.isprintable() and _CONTROL.search(path):
        # Routes are often regular expressions that end with `$`, which matches before a newline at the end too.
        raise BadPath("the path has a control character in it: send it without")
    if path[:1] == "/" and path[-1:] != "/" and _is_plain(path):
        return path
    segments = [segment.partition(";")[0] for segment in path.split("/")]
    if "." in segments or ".." in segments:
        raise BadPath("the path has '.' or '..' in it: send it without them")
    return "/" + "/".join(filter(None, segments))


def _is_plain(path: str) -> bool:
    return "//" not in path and "/." not in path and ";" not in path


def literal(path: str) -> list[str] | None:
    """The segments of a path for servers that ignore nothing of it: to them `;x` and an empty one are segments too.

    None if that makes no difference. A slash at the end makes none.
    """
    if ";" not in path and "//" not in path:
        return None
    return path.removesuffix("/").removeprefix("/").split("/")
