"""Which rules a request is counted under, and what is refused as a rule."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules_helpers import PATHS, PATTERNS, reference

from headgate import Limit, ValidationError
from headgate.http.limits import read_limits
from headgate.http.rules import Rule, Rules


def ids(rules: Rules, method: str, path: str) -> list[str]:
    return [match.rule.id for match in rules.match(method, path)]


# The order, and which of the rules count.


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ({"path": "/**", "priority": 1}, {"path": "/a", "method": "GET"}, "/a"),
        ({"path": "/a"}, {"path": "/a", "priority": -1, "method": "GET"}, "/a"),
        ({"path": "/a"}, {"path": "/*", "method": "GET"}, "/a"),
        ({"path": "/a"}, {"path": "/{x}"}, "/a"),
        ({"path": "/a"}, {"path": "/a/**"}, "/a"),
        ({"path": "/*"}, {"path": "/**"}, "/a"),
        ({"path": "/{x}/**"}, {"path": "/**/a"}, "/a/a"),
        ({"path": "/a/**"}, {"path": "/*/b"}, "/a/b"),
        ({"path": "/**/b"}, {"path": "/**"}, "/a/b"),
        ({"path": "/**/*/b"}, {"path": "/**/*"}, "/a/b"),
        ({"path": "/a/**/b"}, {"path": "/a/**"}, "/a/b"),
        ({"path": "/a/*/**"}, {"path": "/a/**"}, "/a/b"),
        ({"path": "/a", "method": "GET"}, {"path": "/a"}, "/a"),
        ({"path": "/a", "method": "GET|POST"}, {"path": "/a", "method": "*"}, "/a"),
    ],
)
def test_the_most_specific_rule_comes_first_in_any_order_given(
    first: dict[str, Any], second: dict[str, Any], path: str
) -> None:
    rules = [Rule("first", **first), Rule("second", **second)]
    for given_so in (rules, rules[::-1]):
        assert ids(Rules(given_so), "GET", path) == ["first"]
        assert [rule.id for rule in Rules(given_so)] == ["first", "second"]


def test_what_cannot_be_ordered_otherwise_is_tried_as_it_was_given() -> None:
    get, both = Rule("get", "/a", method="GET"), Rule("both", "/a", method="GET|POST")
    assert ids(Rules([get, both]), "GET", "/a") == ["get"]
    assert ids(Rules([both, get]), "GET", "/a") == ["both"]
    assert ids(Rules([get, both]), "POST", "/a") == ["both"]


@pytest.mark.parametrize(
    ("method", "matches", "others"),
    [
        (None, ["GET", "POST", "PURGE", ""], []),
        ("*", ["GET", "POST"], []),
        ("GET", ["GET", "get", "HEAD", "head"], ["POST", "OPTIONS", ""]),
        ("HEAD", ["HEAD"], ["GET"]),
        ("get|Post", ["GET", "POST", "HEAD"], ["PUT"]),
        (" PUT | PATCH ", ["PUT", "PATCH"], ["GET", "HEAD"]),
        (["GET", "delete"], ["GET", "DELETE"], ["POST"]),
        (("M-SEARCH",), ["M-SEARCH"], ["SEARCH"]),
    ],
)
def test_a_rule_matches_its_methods_and_no_others(method: Any, matches: list[str], others: list[str]) -> None:
    rules = Rules([Rule("x", "/a", method=method)])
    assert [name for name in matches if not rules.match(name, "/a")] == []
    assert [name for name in others if rules.match(name, "/a")] == []


def test_parameters_are_those_of_each_rule() -> None:
    rules = Rules(
        [Rule("user", "/users/{id}/**"), Rule("part", "/users/{user}/{part}", also=True), Rule("all", also=True)]
    )
    matches = rules.match("GET", "/users/7/posts")
    assert {match.rule.id: dict(match.params) for match in matches} == {
        "user": {"id": "7"},
        "part": {"user": "7", "part": "posts"},
        "all": {},
    }
    for match in matches:  # they are shared by all who ask
        with pytest.raises(TypeError):
            match.params["id"] = "8"  # type: ignore[index]


def test_also_counts_anywhere_and_shadow_before_the_one_that_decides() -> None:
    rules = [
        Rule("early", "/a", priority=2, shadow=True),
        Rule("extra", "/a", priority=1, also=True),
        Rule("decides", "/a"),
        Rule("late", "/a", priority=-1, shadow=True),
        Rule("later", "/a", priority=-2, also=True),
        Rule("latest", "/a", priority=-3, also=True, shadow=True),
        Rule("never", "/a", priority=-4),
    ]
    assert ids(Rules(rules), "GET", "/a") == ["early", "extra", "later", "latest", "decides"]
    undecided = Rules(rule for rule in rules if not rule.decides)
    assert ids(undecided, "GET", "/a") == ["early", "extra", "late", "later", "latest"]
    assert Rules(rules).match("GET", "/b") == ()
    assert Rules([]).match("GET", "/a") == ()


RULES = st.lists(
    st.builds(
        dict,
        path=PATTERNS,
        method=st.sampled_from([None, "GET", "POST", "GET|POST", "HEAD"]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        shadow=st.sampled_from([False, False, True]),
        also=st.sampled_from([False, False, True]),
    ),
    max_size=8,
)


def model(rules: list[Rule], method: str, path: str) -> list[tuple[str, Mapping[str, str]]]:
    """What counts, said as plainly as can be: try all, in order."""

    def segments(rule: Rule) -> list[int]:
        words = {"*": 1, "{": 1, "**": 3}
        return [words.get(word if word in words else word[0], 0) for word in rule.path.split("/")[1:] if word] + [2]

    ordered = sorted(rules, key=lambda rule: (-rule.priority, segments(rule), rule.method is None))
    matching = []
    for rule in ordered:
        wanted = rule.method is None or method in rule.method or (method == "HEAD" and "GET" in rule.method)
        params = reference(rule.path, path) if wanted else None
        if params is not None:
            matching.append((rule, params))
    decides = next((pair for pair in matching if not pair[0].also and not pair[0].shadow), None)
    counted = []
    for place, (rule, params) in enumerate(matching):
        in_force = rule.shadow and (decides is None or place < matching.index(decides))
        if rule.also or in_force:
            counted.append((rule.id, params))
    return counted + ([(decides[0].id, decides[1])] if decides else [])


@given(RULES, st.lists(st.tuples(st.sampled_from(["GET", "HEAD", "POST", "PUT"]), PATHS), min_size=1, max_size=4))
def test_matching_rules_equal_a_plain_model(
    descriptions: list[dict[str, Any]], requests: list[tuple[str, str]]
) -> None:
    rules: list[Rule] = []
    for number, description in enumerate(descriptions):
        try:
            Rules([*rules, Rule(f"r{number}", **description)])
        except ValidationError:
            continue  # it would be the same as another
        rules.append(Rule(f"r{number}", **description))
    compiled = Rules(rules)
    for method, path in requests * 2:  # the second time they are remembered
        assert [(match.rule.id, match.params) for match in compiled.match(method, path)] == model(rules, method, path)


@given(RULES, st.sampled_from(["GET", "POST"]), PATHS)
def test_a_shadow_counts_where_it_would_be_in_force(descriptions: list[dict[str, Any]], method: str, path: str) -> None:
    """A rule is counted as a shadow exactly where it is in force when it alone is none."""
    rules = [Rule(f"r{n}", **{**fields, "priority": n}) for n, fields in enumerate(descriptions)]
    counted = ids(Rules(rules), method, path)
    for place, rule in enumerate(rules):
        if rule.shadow:
            fields = {**descriptions[place], "priority": place, "shadow": False}
            enforced = Rules([*rules[:place], Rule(rule.id, **fields), *rules[place + 1 :]])
            assert (rule.id in counted) == (rule.id in ids(enforced, method, path))


# What is remembered.


def test_answers_are_remembered_but_not_without_end() -> None:
    rules = Rules([Rule("x", "/{id}")])
    assert rules.match("GET", "/a") is rules.match("GET", "/a")
    long = "/" + "a" * 60_000
    assert rules.match("GET", long) is not rules.match("GET", long)
    assert rules.match("GET" * 60_000, "/a") is not rules.match("GET" * 60_000, "/a")
    for number in range(5_000):
        assert rules.match("GET", f"/{number}")[0].params == {"id": str(number)}
    assert len(rules._recent) <= 1024


def test_threads_get_the_same_answers() -> None:
    rules = Rules([Rule("x", "/{id}"), Rule("y", "/{id}/**", also=True)])

    def ask(start: int) -> bool:
        numbers = [str((start * 7 + step * 13) % 3_000) for step in range(2_000)]
        return all([m.params["id"] for m in rules.match("GET", f"/{number}")] == [number] * 2 for number in numbers)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))


# What a rule may be.


def test_a_rule_is_a_value() -> None:
    rule = Rule("x", "/a", method="post|get", limits="10/minute", cost={"minute": 2})
    assert rule == Rule("x", "/a", method=["GET", "POST"], limits=[Limit.per_minute("minute", 10)], cost={"minute": 2})
    assert rule != Rule("x", "/a", method="GET", limits="10/minute", cost={"minute": 2})
    assert len({rule, rule}) == 1
    assert (rule.method, rule.limits) == (("GET", "POST"), (Limit.per_minute("minute", 10),))
    with pytest.raises(AttributeError):
        rule.id = "y"  # type: ignore[misc]


def test_rule_has_defaults_for_all_but_its_id() -> None:
    rule = Rule("x")
    assert (rule.path, rule.method, rule.limits, rule.priority, rule.cost) == ("/**", None, None, 0, 1)
    assert (rule.shadow, rule.per, rule.also, rule.decides) == (False, "caller", False, True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"id": ""}, "rule id '' is not allowed"),
        ({"id": "a b"}, "rule id 'a b' is not allowed"),
        ({"id": 5}, "rule id must be a string, not 5"),
        ({"path": "a"}, "path must start with '/'"),
        ({"method": ""}, "method must be like"),
        ({"method": "GET POST"}, "method must be like"),
        ({"method": "GET,POST"}, "method must be like"),
        ({"method": "GET|"}, "method must be like"),
        ({"method": "GET|*"}, "method must be like"),
        ({"method": []}, "method must be like"),
        ({"method": ["GET", 5]}, "method must be like"),
        ({"method": 5}, "method must be like"),
        ({"limits": "10/fortnight"}, "limit cannot be read from '10/fortnight'"),
        ({"limits": []}, "limits must be like"),
        ({"priority": "1"}, "priority must be a whole number"),
        ({"priority": 1.0}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"cost": -1}, "cost must be more than zero"),
        ({"cost": "1"}, "cost must be a number"),
        ({"cost": True}, "cost must be a number"),
        ({"cost": float("nan")}, "cost must be finite"),
        ({"cost": None}, "cost must be a number"),
        ({"cost": {}}, "cost must name a limit"),
        ({"cost": {"rpm": -1}}, "cost of limit 'rpm' must be more than zero"),
        ({"cost": {"": 1}}, "limit name '' is not allowed"),
        ({"cost": 11, "limits": "10/minute"}, "would refuse every request: its cost is 11, and limit 'minute'"),
        ({"cost": {"rpm": 1}, "limits": "1/s; 9/day"}, "limit nothing: its cost names rpm, its limits are second, day"),
        ({"limits": "0.5/hour"}, "would refuse every request: its cost is 1"),
        ({"cost": {"minute": 21}, "limits": "10/minute burst 20"}, "never holds more than 20"),
        ({"cost": 1.5, "limits": "2 concurrent"}, "a whole number of slots 'concurrent'"),
        ({"shadow": 1}, "shadow must be true or false"),
        ({"also": "yes"}, "also must be true or false"),
        ({"per": "team"}, "per must be one of caller, user"),
        ({"per": []}, "per must be one of caller, user"),
    ],
)
def test_a_bad_rule_is_refused_with_the_reason(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Rule(**{"id": "x", **fields})


def test_a_cost_by_function_is_not_asked_beforehand() -> None:
    rule = Rule("x", limits="10/minute", cost=lambda call: {"minute": call})
    assert callable(rule.cost)


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        ({"id": "x"}, {"id": "x", "path": "/a"}, "rule 'x' is repeated"),
        ({}, {}, "rule 'two' would never decide: 'one' matches the same"),
        ({"path": "/a/{x}"}, {"path": "/a/*/"}, "would never decide"),
        ({"method": "GET|POST"}, {"method": ["post", "get"]}, "would never decide"),
        ({"method": "GET"}, {"method": "GET|HEAD"}, "would never decide"),
        ({"method": "*"}, {"method": None}, "would never decide"),
        ({"path": "/a", "priority": 3}, {"path": "/a", "priority": 3}, "would never decide"),
    ],
)
def test_two_that_cannot_be_told_apart(one: dict[str, Any], two: dict[str, Any], why: str) -> None:
    rules = [Rule(**{"id": "one", **one}), Rule(**{"id": "two", **two})]
    with pytest.raises(ValidationError, match=why):
        Rules(rules)


@pytest.mark.parametrize(
    "fields", [{"also": True}, {"shadow": True}, {"priority": 1}, {"method": "GET"}, {"path": "/a"}]
)
def test_two_rules_that_differ_are_accepted(fields: dict[str, Any]) -> None:
    assert len(Rules([Rule("one"), Rule("two", **fields)])) == 2


def test_rules_are_found_by_id_and_only_rules_are_accepted() -> None:
    rules = Rules([Rule("one"), Rule("two", "/a")])
    assert rules["two"].path == "/a"
    with pytest.raises(KeyError):
        rules["three"]
    with pytest.raises(ValidationError, match="rules must be Rule objects, not 'one'"):
        Rules(["one"])  # type: ignore[list-item]


# Limits as people write them.


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("10/minute burst 20", [Limit.per_minute("minute", 10, burst=20)]),
        ("10/second; 100/minute", [Limit.per_second("second", 10), Limit.per_minute("minute", 100)]),
        ("10/s,100/m", [Limit.per_second("second", 10), Limit.per_minute("minute", 100)]),
        ("5/15 minutes", [Limit("minute15", 5, 5, 900)]),
        ("5 per 10 seconds", [Limit("second10", 5, 5, 10)]),
        ("1/1.5h", [Limit("minute90", 1, 1, 5400)]),
        ("1/60s", [Limit.per_minute("minute", 1)]),
        ("1/ms", [Limit("ms", 1, 1, 0.001)]),
        ("2/500ms", [Limit("ms500", 2, 2, 0.5)]),
        ("2/7 days", [Limit("week", 2, 2, 604_800)]),
        ("3 concurrent ttl 5s", [Limit.concurrent("concurrent", 3, ttl=5)]),
        ("rpm=10/minute; tpm = 1000/minute", [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1000)]),
        (["1/s", "x=2/s; 3/day"], [Limit.per_second("second", 1), Limit.per_second("x", 2), Limit.per_day("day", 3)]),
        ({"rpm": "10/minute"}, [Limit.per_minute("rpm", 10)]),
        (Limit.per_day("usd", 25), [Limit.per_day("usd", 25)]),
        ([Limit.per_day("usd", 25), "1/s"], [Limit.per_day("usd", 25), Limit.per_second("second", 1)]),
    ],
)
def test_every_spelling_of_limits_is_read(spec: Any, expected: list[Limit]) -> None:
    assert read_limits(spec) == tuple(expected)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("", "limit cannot be read from ''"),
        ("10", "limit cannot be read from '10'"),
        ("10/minute;", "limit cannot be read from ''"),
        ("1,000/minute", "limit cannot be read from '1'"),
        ("0/minute", "capacity of limit must be more than zero"),
        ("x=10", "limit 'x' cannot be read from '10'"),
        ("1x=10/s", "limit name '1x' is not allowed"),
        ("=10/s", "limit name '' is not allowed"),
        ("10/minute; 20/60s", "limit 'minute' is given twice"),
        (["10/minute", "minute=20/s"], "limit 'minute' is given twice"),
        ({"x": 5}, "limit 'x' cannot be read from 5"),
        ({5: "1/s"}, "limit name must be a string"),
        ([5], "limits must be strings like '10/minute' or Limit objects, not 5"),
        ([["1/s"]], "limits must be strings"),
        (b"1/s", "limits must be like"),
        ([], "limits must be like"),
        ({}, "limits must be like"),
        (None, "limits must be like"),
        (10, "limits must be like"),
    ],
)
def test_bad_limits_are_refused_with_the_reason(spec: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        read_limits(spec)


@given(st.lists(st.integers(1, 366 * 86_400_000), min_size=2, max_size=5), st.integers(1, 10**6))
def test_a_limit_is_named_after_its_period_however_it_is_written(periods: list[int], amount: int) -> None:
    names = {}
    for period in periods:
        (limit,) = read_limits(f"{amount}/{period} ms")
        (again,) = read_limits(f"7/{period / 1000:.3f}s")
        assert limit == Limit(limit.name, amount, amount, period / 1000)
        assert again.name == limit.name
        names[period] = limit.name
    assert len(set(names.values())) == len(names)
