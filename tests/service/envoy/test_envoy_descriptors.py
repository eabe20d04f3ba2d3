"""Rules for descriptors: which one a descriptor falls under, and which cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.files import DocumentError
from headgate.http.rules_file import load_rules
from headgate.service.envoy.rules import SECTION, DescriptorRule, DescriptorRules, read_descriptors


def rule(
    id: str = "r", match: Any = None, limits: Any = "10/minute", domain: str = "edge", **more: Any
) -> DescriptorRule:
    return DescriptorRule(id, domain, {"a": "*"} if match is None else match, limits, **more)


def found(rules: list[DescriptorRule], *entries: tuple[str, str], domain: str = "edge") -> list[str]:
    encoded = [(key, value.encode()) for key, value in entries]
    return [rule.id for rule in DescriptorRules(rules).find(domain, encoded)]


def test_all_keys_match_and_in_this_order() -> None:
    rules = [rule("one", {"a": "*"}), rule("two", {"a": "*", "b": "*"})]
    assert found(rules, ("a", "1")) == ["one"]
    assert found(rules, ("a", "1"), ("b", "2")) == ["two"]
    assert found(rules, ("b", "2"), ("a", "1")) == []
    assert found(rules, ("a", "1"), ("b", "2"), ("c", "3")) == []
    assert found(rules, ("a", "1"), domain="other") == []


def test_a_key_may_come_twice() -> None:
    rules = [rule(match=[{"generic_key": "slow"}, {"generic_key": "*"}])]
    assert found(rules, ("generic_key", "slow"), ("generic_key", "x")) == ["r"]
    assert found(rules, ("generic_key", "x"), ("generic_key", "slow")) == []


def test_a_value_before_any_value_and_priority_before_both() -> None:
    rules = [rule("any"), rule("bob", {"a": "bob"}), rule("eve", {"a": "eve"}), rule("all", priority=-1)]
    assert found(rules, ("a", "bob")) == ["bob"]
    assert found(rules, ("a", "eve")) == ["eve"]
    assert found(rules, ("a", "else")) == ["any"]
    assert found([*rules, rule("first", priority=1)], ("a", "bob")) == ["first"]
    pairs = [
        rule("later", {"a": "*", "b": "x"}),
        rule("earlier", {"a": "x", "b": "*"}),
        rule("none", {"a": "*", "b": "*"}),
    ]
    assert found(pairs, ("a", "x"), ("b", "x")) == ["earlier"]
    assert found(pairs, ("a", "y"), ("b", "x")) == ["later"]


def test_a_shadow_counts_beside_the_rule_it_stands_before() -> None:
    rules = [rule("any"), rule("shadow", {"a": "bob"}, shadow=True), rule("late", priority=-1, shadow=True)]
    assert found(rules, ("a", "bob")) == ["shadow", "any"]
    assert found(rules, ("a", "eve")) == ["any"]


VALUES = st.sampled_from(["x", "y", "*"])


@given(
    st.lists(st.tuples(VALUES, VALUES, st.integers(-1, 1), st.booleans()), max_size=12),
    st.sampled_from("xyz"),
    st.sampled_from("xyz"),
)
def test_the_order_is_that_of_a_plain_search(given_: list[Any], one: str, two: str) -> None:
    rules, seen = [], set()
    for at, (a, b, priority, shadow) in enumerate(given_):
        if shadow or (a, b, priority) not in seen:
            rules.append(rule(f"r{at}", {"a": a, "b": b}, priority=priority, shadow=shadow))
            seen |= set() if shadow else {(a, b, priority)}
    in_order = sorted(
        rules, key=lambda rule: (-rule.priority, sum(value == "*" for _, value in rule.match), rule.match[0][1] == "*")
    )
    expected = []
    for candidate in in_order:
        if all(value in ("*", sent) for (_, value), sent in zip(candidate.match, (one, two))):
            expected.append(candidate.id)
            if not candidate.shadow:
                break
    assert found(rules, ("a", one), ("b", two)) == expected


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"id": "a/b"}, "id 'a/b' is not allowed"),
        ({"domain": ""}, "domain must be a string"),
        ({"match": {}}, "match must name a key"),
        ({"match": "a"}, "match must be like"),
        ({"match": {"a": False}}, "write it in quotes"),
        ({"match": {"": "x"}}, "write it in quotes"),
        ({"limits": "10 concurrent"}, "Envoy never releases one"),
        ({"limits": "often"}, "cannot be read"),
        ({"cost": 0}, "cost must be more than zero"),
        ({"cost": 11}, "cost is 11"),
        ({"shadow": "yes"}, "shadow must be true or false"),
        ({"debt": 1}, "debt must be true or false"),
        ({"secret": "a"}, "secret must be a list of keys"),
        ({"secret": ["b"]}, "secret names 'b', which is not a key of match: use a"),
    ],
)
def test_a_rule_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        rule(**fields)


def test_rules_that_cannot_be_together() -> None:
    with pytest.raises(ValidationError, match="'r' is repeated"):
        DescriptorRules([rule(), rule(match={"b": "*"})])
    with pytest.raises(ValidationError, match="'s' would never decide: 'r' matches the same"):
        DescriptorRules([rule(), rule("s")])
    with pytest.raises(ValidationError, match="must be DescriptorRule"):
        DescriptorRules(["r"])  # type: ignore[list-item]
    assert len(DescriptorRules([rule(), rule("s", shadow=True), rule("t", priority=1), rule("u", domain="other")])) == 4


def read(folder: Path, text: str, name: str = "rules.yaml") -> DescriptorRules:
    path = folder / name
    path.write_text(text)
    return read_descriptors(load_rules(path, sections=[SECTION]).sections.get(SECTION))


def test_descriptors_are_read_from_a_file(tmp_path: Path) -> None:
    text = """
descriptors:
  - id: login
    domain: edge
    match: {path: /login, remote_address: "*"}
    limits: [5/minute, 100/day]
    cost: 2
    shadow: true
    debt: true
    priority: 7
    secret: [remote_address]
"""
    (read_rule,) = read(tmp_path, text).rules
    limits = [Limit.per_minute("minute", 5), Limit.per_day("day", 100)]
    more: Any = {"cost": 2, "shadow": True, "debt": True, "priority": 7, "secret": ["remote_address"]}
    assert read_rule == DescriptorRule("login", "edge", {"path": "/login", "remote_address": "*"}, limits, **more)
    toml = 'descriptors = [{id = "a", domain = "d", match = {b = "*", a = "1"}, limits = "1/second"}]'
    assert read(tmp_path, toml, "rules.toml").rules[0].keys == ("b", "a")
    assert len(read(tmp_path, "rules: []")) == 0


def test_everything_that_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    text = """\
descriptors:
  - id: a
    domain: edge
    match: {authenticated: false}
    limits: often
  - id: b
    domian: edge
    limits: 1/minute
  - id: c
    domain: edge
    match: {x: "*"}
    limits: 1/minute
    cost: 2
  - id: d
    domain: edge
    match: {y: "*"}
    limits: 1/minute
  - id: d
    domain: edge
    match: {z: "*"}
    limits: 1/minute
"""
    with pytest.raises(DocumentError) as caught:
        read(tmp_path, text)
    told = [problem.removeprefix(f"{tmp_path}/rules.yaml:").partition(": ") for problem in caught.value.problems]
    expected = [
        ("4", "match must have strings"),
        ("5", "cannot be read"),
        ("6", "lacks 'domain'"),
        ("6", "lacks 'match'"),
        ("7", "unknown key 'domian'"),
        ("9", "cost is 2"),
        ("18", "'d' is repeated"),
    ]
    assert [line for line, _, _ in told] == [line for line, _ in expected]
    for (_, _, what), (_, part) in zip(told, expected):
        assert part in what
