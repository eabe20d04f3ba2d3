"""A request as rules see it, in any framework."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..core.errors import ValidationError


class BadPath(ValidationError):
    """A path that servers interpret differently, so that a rule might not apply to what the path leads to."""


_NOTHING: Any = {}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class HttpCall(ABC):
    """`path` is decoded, without the parts that servers ignore. `params` are the parameters of the rule's path.

    `native` is the framework's own object: a scope, an environ or a request. `caller` is the caller, once it is known.
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
        """All values of a header, as they were sent. The name is in lower case."""

    def header(self, name: str) -> str | None:
        """The value of a header. None if it is repeated: servers differ in which value they use."""
        values = self.headers(name)
        return values[0] if len(values) == 1 else None

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The address of the peer; None if it is not connected by network."""

    @property
    @abstractmethod
    def user(self) -> str | None:
        """The user that the framework has authenticated."""


def clean(path: str) -> str:
    """Parts that servers ignore are no way around a rule: `//login`, `/login/` and `/login;x` are `/login`."""
    if not path.isprintable() and _CONTROL.search(path):
        # Routes are often regular expressions that end with `$`, which matches before a newline at the end too.
        raise BadPath("the path contains a control character: send it without")
    if path[:1] == "/" and path[-1:] != "/" and _is_plain(path):
        return path
    segments = [segment.partition(";")[0] for segment in path.split("/")]
    if "." in segments or ".." in segments:
        raise BadPath("the path contains '.' or '..': send it without them")
    return "/" + "/".join(filter(None, segments))


def _is_plain(path: str) -> bool:
    return "//" not in path and "/." not in path and ";" not in path


def literal(path: str) -> list[str] | None:
    """The segments of a path for servers that ignore nothing: `;x` and an empty segment count for them.

    None if that makes no difference. A slash at the end makes none.
    """
    if ";" not in path and "//" not in path:
        return None
    return path.removesuffix("/").removeprefix("/").split("/")
