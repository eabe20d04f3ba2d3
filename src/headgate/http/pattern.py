"""Patterns of paths, and the tree that finds those that match.

A pattern consists of segments: a literal, `*` or `{name}` for exactly one, `**` for any number, zero included. Matching
a path of n segments with a pattern of m takes at most n * m steps: literals up to the first `**` are looked up in a
tree, and each piece between two `**` is placed at the first position where it fits. No later position is better, since
the first one leaves the most to the pieces that follow, so there is no backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from ..core.errors import ValidationError

T = TypeVar("T")

ONE = "*"
ANY = "**"
_PARAMETER = re.compile(r"\{(.*)\}")
_NOT_LITERAL = re.compile(r"[*{}<>?#;\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
_ALLOWED = "a segment is a literal, `*` or `{name}` (exactly one segment), or `**` (any number)"
_RANKS = {ONE: 1, ANY: 3}
_LITERAL, _END = 0, 2


class Pattern:
    """A pattern, read. `segments` has `*` for a parameter; `names` says where the parameters are."""

    __slots__ = ("names", "segments", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.startswith("/"):
            raise ValidationError(f"path must start with '/', like '/users/{{id}}' or '/files/**', not {text!r}")
        self.text = text
        self.names: dict[str, int] = {}
        written = text.removesuffix("/")[1:].split("/") if text != "/" else []
        self.segments = tuple(self._read(segment, at) for at, segment in enumerate(written))
        if (ANY, ANY) in pairwise(self.segments):
            raise ValidationError(f"path {text!r} has '**' twice in a row: write it once")

    def _read(self, segment: str, at: int) -> str:
        if segment in (ONE, ANY):
            return segment
        parameter = _PARAMETER.fullmatch(segment)
        if parameter:
            self._name(parameter[1], at)
            return ONE
        self._check_literal(segment)
        return segment

    def _name(self, name: str, at: int) -> None:
        if not name.isidentifier():
            raise ValidationError(f"path {self.text!r}: {{{name}}} must be a name like {{id}} or {{user_id}}")
        if name in self.names:
            raise ValidationError(f"path {self.text!r} has {{{name}}} twice: give each parameter its own name")
        self.names[name] = at

    def _check_literal(self, segment: str) -> None:
        if segment in ("", ".", ".."):
            raise ValidationError(f"path {self.text!r} has the segment {segment!r}, which never matches: leave it out")
        odd = _NOT_LITERAL.search(segment)
        if odd and odd[0].startswith("%"):
            raise ValidationError(f"path {self.text!r} has {odd[0]!r}: write the character itself, paths are decoded")
        if odd:
            raise ValidationError(f"path {self.text!r} cannot have {odd[0]!r} in {segment!r}: {_ALLOWED}")

    @property
    def specificity(self) -> tuple[int, ...]:
        """Of two patterns that match the same path, the one with the smaller value is more specific.

        Segment by segment, a literal comes before `*` and `{name}`, these before the end, the end before `**`. So a
        longer pattern comes before a shorter one that it extends, unless it only adds `**`.
        """
        return (*(_RANKS.get(segment, _LITERAL) for segment in self.segments), _END)

    def parameters(self, segments: Sequence[str]) -> dict[str, str]:
        """The parameters of a path that matches, if no `**` comes before a parameter."""
        return {name: segments[at] for name, at in self.names.items()} if self.names else {}


def split(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


class PatternTree(Generic[T]):
    """Finds, among many patterns, those that match a path, without trying each."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: Pattern, value: T) -> None:
        node = self._root
        fixed = pattern.segments[: pattern.segments.index(ANY)] if ANY in pattern.segments else pattern.segments
        for segment in fixed:
            node = node.child(segment)
        if fixed == pattern.segments:
            node.exactly.append((pattern, value))
        elif (*fixed, ANY) == pattern.segments:
            node.below.append((pattern, value))
        else:
            node.around.append((_Pieces(pattern), value))

    def find(self, segments: Sequence[str]) -> list[tuple[T, dict[str, str]]]:
        """The values whose patterns match, in no particular order, with their parameters."""
        found: list[tuple[T, dict[str, str]]] = []
        level = [self._root]
        for depth, segment in enumerate(segments):
            following = []
            for node in level:
                if node.below or node.around:
                    node.find_open(segments, depth, found)
                child = node.literals.get(segment)
                if child:
                    following.append(child)
                if node.one:
                    following.append(node.one)
            if not following:
                return found
            level = following
        for node in level:
            node.find_open(segments, len(segments), found)
            for pattern, value in node.exactly:
                found.append((value, pattern.parameters(segments)))
        return found


class _Node(Generic[T]):
    """The patterns that begin with the same segments, up to the first `**`."""

    __slots__ = ("around", "below", "exactly", "literals", "one")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[T]] = {}
        self.one: _Node[T] | None = None
        self.exactly: list[tuple[Pattern, T]] = []
        self.below: list[tuple[Pattern, T]] = []  # with `**`, and nothing after it
        self.around: list[tuple[_Pieces, T]] = []  # with `**`, and more after it

    def child(self, segment: str) -> _Node[T]:
        if segment != ONE:
            return self.literals.setdefault(segment, _Node())
        if self.one is None:
            self.one = _Node()
        return self.one

    def find_open(self, segments: Sequence[str], depth: int, found: list[tuple[T, dict[str, str]]]) -> None:
        for pattern, value in self.below:
            found.append((value, pattern.parameters(segments)))
        for pieces, value in self.around:
            parameters = pieces.match(segments, depth)
            if parameters is not None:
                found.append((value, parameters))


class _Pieces:
    """The pieces of a pattern between and after its `**`. The tree has matched the piece before."""

    __slots__ = ("between", "last", "names")

    def __init__(self, pattern: Pattern) -> None:
        stars = [at for at, segment in enumerate(pattern.segments) if segment == ANY]
        starts = [0, *(star + 1 for star in stars)]
        *self.between, self.last = (
            pattern.segments[start:end] for start, end in zip(starts[1:], [*stars[1:], len(pattern.segments)])
        )
        self.names = []  # of each parameter the piece it is in, and where in it
        for name, at in pattern.names.items():
            number, start = max((number, start) for number, start in enumerate(starts) if start <= at)
            self.names.append((name, number, at - start))

    def match(self, segments: Sequence[str], start: int) -> dict[str, str] | None:
        """The parameters, if the segments from `start` on match."""
        end = len(segments) - len(self.last)
        if end < start or not _fits(self.last, segments, end):
            return None
        places = [0]
        for piece in self.between:
            fitting = (at for at in range(start, end - len(piece) + 1) if _fits(piece, segments, at))
            place = next(fitting, None)
            if place is None:
                return None
            places.append(place)
            start = place + len(piece)
        places.append(end)
        return {name: segments[places[number] + at] for name, number, at in self.names}


def _fits(piece: Sequence[str], segments: Sequence[str], at: int) -> bool:
    return all(segment in (ONE, segments[offset]) for offset, segment in enumerate(piece, at))
