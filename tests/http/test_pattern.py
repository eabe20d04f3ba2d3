"""Which paths a pattern matches, what its parameters are, and that no path takes long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules_helpers import PATHS, PATTERNS, reference

from headgate import ValidationError
from headgate.http.pattern import Pattern, PatternTree, split


def match(pattern: str, path: str) -> dict[str, str] | None:
    tree: PatternTree[str] = PatternTree()
    tree.add(Pattern(pattern), pattern)
    found = tree.find(split(path))
    assert len(found) <= 1
    return found[0][1] if found else None


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("/", ["/", ""], ["/a"]),
        ("/a", ["/a", "/a/"], ["/", "/b", "/A", "/a/b", "/ab"]),
        ("/a/", ["/a", "/a/"], ["/a/b"]),
        ("/a/*", ["/a/b", "/a/*", "/a/**", "/a/{x}"], ["/a", "/a/b/c", "/b/b"]),
        ("/*", ["/a"], ["/", "/a/b"]),
        ("/*/b", ["/a/b", "/b/b"], ["/b", "/a/b/c"]),
        ("/**", ["/", "", "/a", "/a/b/c", "*"], []),
        ("/a/**", ["/a", "/a/x", "/a/x/y"], ["/", "/ab", "/b/a"]),
        ("/a/**/b", ["/a/b", "/a/x/b", "/a/x/y/b", "/a/b/b"], ["/a", "/b", "/a/b/c", "/a/x"]),
        ("/**/b", ["/b", "/a/b", "/a/b/b"], ["/", "/a", "/b/a"]),
        ("/**/*", ["/a", "/a/b"], ["/"]),
        ("/a/*/**", ["/a/b", "/a/b/c"], ["/a"]),
        ("/a/**/b/**/c", ["/a/b/c", "/a/x/b/y/z/c", "/a/b/b/c/c"], ["/a/c", "/a/b", "/a/c/b", "/b/c"]),
        ("/**/a/**/a/**", ["/a/a", "/a/x/a", "/a/a/a"], ["/a", "/a/x"]),
        ("/**/a/**/a/b", ["/a/a/b", "/a/x/a/b"], ["/a/b", "/a/x/b"]),
        ("/**/a/b/**", ["/a/b", "/a/a/b", "/x/a/b/y"], ["/a", "/a/x/b", "/b/a"]),
        ("/**/a/*/c/**/d", ["/a/b/c/d", "/a/a/a/c/x/d"], ["/a/c/d", "/a/b/c", "/a/a/b/b/c/d"]),
        ("/v1/models:list", ["/v1/models:list"], ["/v1/models"]),
        ("/caf\u00e9/50% off", ["/caf\u00e9/50% off"], ["/cafe/50% off"]),
        ("/.well-known/*", ["/.well-known/x"], ["/well-known/x"]),
    ],
)
def test_a_pattern_matches_its_paths_and_no_others(pattern: str, matches: Sequence[str], others: Sequence[str]) -> None:
    assert [path for path in matches if match(pattern, path) is None] == []
    assert [path for path in others if match(pattern, path) is not None] == []


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/users/{id}", "/users/7", {"id": "7"}),
        ("/users/{id}", "/users", None),
        ("/users/{id}", "/users/7/8", None),
        ("/users/{id}/**", "/users/7", {"id": "7"}),
        ("/{a}/**/{b}", "/x/1/2/y", {"a": "x", "b": "y"}),
        ("/**/{last}", "/x/y", {"last": "y"}),
        ("/**/a/{x}/**", "/a/1/a/2", {"x": "1"}),  # the first place it fits
        ("/{a}/**/{b}/c/**/d/{e}", "/1/2/3/c/4/c/d/5", {"a": "1", "b": "3", "e": "5"}),
    ],
)
def test_parameters_of_a_pattern_are_read_from_the_path(
    pattern: str, path: str, expected: dict[str, str] | None
) -> None:
    assert match(pattern, path) == expected


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "must start with '/'"),
        ("users", "must start with '/'"),
        ("**", "must start with '/'"),
        (None, "must start with '/'"),
        ("https://host/a", "must start with '/'"),
        ("/files/*.json", r"cannot have '\*' in '\*.json': a segment is a literal"),
        ("/a**", r"cannot have '\*'"),
        ("/***", r"cannot have '\*'"),
        ("/a/x{id}", r"cannot have '\{'"),
        ("/a/{id}.json", r"cannot have '\{'"),
        ("/a/{id", r"cannot have '\{'"),
        ("/a/<id>", "cannot have '<'"),
        ("/a?b=1", r"cannot have '\?'"),
        ("/a#b", "cannot have '#'"),
        ("/a;b", "cannot have ';'"),
        ("/a\nb", "cannot have"),
        ("/a%20b", "write the character itself"),
        ("/{}", "must be a name"),
        ("/{1}", "must be a name"),
        ("/{id:int}", "must be a name"),
        ("/{a b}", "must be a name"),
        ("/{id}/{id}", "twice"),
        ("/**/**", "twice in a row"),
        ("/a/**/**/b", "twice in a row"),
        ("//", "segment ''"),
        ("/a//b", "segment ''"),
        ("/a/./b", r"segment '\.'"),
        ("/a/..", r"segment '\.\.'"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Pattern(pattern)


@given(st.lists(PATTERNS, min_size=1, max_size=12), PATHS)
def test_pattern_tree_finds_what_regular_expressions_find(patterns: list[str], path: str) -> None:
    tree: PatternTree[int] = PatternTree()
    for number, pattern in enumerate(patterns):
        tree.add(Pattern(pattern), number)
    expected = {number: reference(pattern, path) for number, pattern in enumerate(patterns)}
    assert dict(tree.find(split(path))) == {number: found for number, found in expected.items() if found is not None}


class Counted(str):
    """A segment that counts how often one is looked at, and has an end to its patience."""

    looks = 0
    most = 0

    def _look(self) -> None:
        Counted.looks += 1
        assert Counted.looks <= Counted.most, "too many steps"

    def __eq__(self, other: object) -> bool:
        self._look()
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self._look()
        return str.__hash__(self)


def look(tree: PatternTree[int], path: list[str], most: int) -> list[int]:
    Counted.looks, Counted.most = 0, most
    return [value for value, _ in tree.find([Counted(segment) for segment in path])]


@pytest.mark.parametrize(
    "pattern",
    [
        "/**/a/a/a/a/b/**/a/a/b/**/b/a",
        "/**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/b/a",
        "/**/*/*/*/b/**/*/{x}/a/**/b/*",
        "/a/**/a/*/a/*/a/b/**/a",
    ],
)
def test_a_hostile_path_takes_no_more_steps_than_its_segments_times_those_of_the_pattern(pattern: str) -> None:
    path = ["a"] * 30_000
    tree: PatternTree[int] = PatternTree()
    tree.add(Pattern(pattern), 1)
    assert look(tree, path, len(path) * len(split(pattern))) == []


def test_a_thousand_patterns_are_not_compared_one_by_one() -> None:
    tree: PatternTree[int] = PatternTree()
    for number in range(1_000):
        tree.add(Pattern(f"/api/v{number % 3}/r{number}/{{id}}" + "/**" * (number % 2)), number)
    tree.add(Pattern("/**"), 1_000)
    assert sorted(look(tree, ["api", "v0", "r501", "7", "x"], 20)) == [501, 1_000]


@given(PATTERNS, PATTERNS, PATHS)
def test_a_literal_in_place_of_what_is_open_is_more_specific(pattern: str, other: str, path: str) -> None:
    """Of two that match, the one that says more about the first segment where they differ."""
    if match(pattern, path) is None or match(other, path) is None:
        return
    first, second = Pattern(pattern), Pattern(other)
    order = {"a": 0, "b": 0, "*": 1, "": 2, "**": 3}
    for mine, its in zip((*first.segments, "", ""), (*second.segments, "", "")):
        if order[mine] != order[its]:
            assert (first.specificity < second.specificity) == (order[mine] < order[its])
            return
    assert first.specificity == second.specificity
