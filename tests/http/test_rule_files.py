"""Rules from files: what is read, and that every mistake is reported with its line, in YAML and TOML alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from document_writers import TomlWriter, YamlWriter
from hypothesis import given
from hypothesis import strategies as st
from rules_helpers import PATTERNS, assert_like, problems

from headgate import Limit
from headgate.files import DocumentError
from headgate.http.limits import read_limits
from headgate.http.rules import Per, Rule
from headgate.http.rules_file import RulesFile, load_rules

YAML = """\
# who may do how much
rules:
  - id: search
    method: GET
    path: /search/**
    limits: 10/minute burst 20
    cost: 1
  - id: chat
    method: [POST, put]
    path: /chat/{room}
    limits: {rpm: 60/minute, tpm: 10_000/minute}
    cost: {rpm: 1, tpm: 0.5}
    per: organisation
    priority: -5
    bad_cost: {rpm: 1}
  - id: all
    limits: [100/second, day=1000/day]
    shadow: true
    also: true
    per: everyone
  - id: stored
plans:
  pro:
    search: 100/minute
    chat: {rpm: 600/minute, tpm: 100_000/minute}
    "*": 1000/minute       # every rule the plan does not name
  free: {}
"""
TOML = """\
# who may do how much
[[rules]]
id = "search"
method = "GET"
path = "/search/**"
limits = "10/minute burst 20"
cost = 1

[[rules]]
id = "chat"
method = ["POST", "put"]
path = "/chat/{room}"
limits = {rpm = "60/minute", tpm = "10_000/minute"}
cost = {rpm = 1, tpm = 0.5}
per = "organisation"
bad_cost = {rpm = 1}
priority = -5

[[rules]]
id = "all"
limits = ["100/second", "day=1000/day"]
shadow = true
also = true
per = "everyone"

[[rules]]
id = "stored"

[plans.pro]
search = "100/minute"
chat = {rpm = "600/minute", tpm = "100_000/minute"}
"*" = "1000/minute"  # every rule the plan does not name

[plans.free]
"""


def load(folder: Path, suffix: str, text: str, **options: Any) -> RulesFile:
    path = folder / f"rules.{suffix}"
    path.write_text(text)
    return load_rules(path, **options)


@pytest.mark.parametrize(("suffix", "text"), [("yaml", YAML), ("yml", YAML), ("toml", TOML), ("YAML", YAML)])
def test_a_file_of_rules_is_read_whole_in_yaml_and_toml(tmp_path: Path, suffix: str, text: str) -> None:
    file = load(tmp_path, suffix, text)
    assert {rule.id: rule for rule in file.rules} == {
        "search": Rule("search", "/search/**", method="GET", limits="10/minute burst 20"),
        "chat": Rule(
            "chat",
            "/chat/{room}",
            method="POST|PUT",
            limits={"rpm": "60/minute", "tpm": "10000/minute"},
            cost={"rpm": 1, "tpm": 0.5},
            per="organisation",
            priority=-5,
            bad_cost={"rpm": 1},
        ),
        "all": Rule("all", limits="100/second; 1000/day", shadow=True, also=True, per="everyone"),
        "stored": Rule("stored"),
    }
    pro = {"search": "100/minute", "chat": "rpm=600/minute; tpm=100000/minute", "*": "1000/minute"}
    assert file.plans == {"pro": {id: read_limits(limits) for id, limits in pro.items()}, "free": {}}
    assert file.sections == {}


MISTAKES = [
    (
        "an unknown key",
        "rules:\n  - id: x\n    limts: 1/s",
        '[[rules]]\nid = "x"\nlimts = "1/s"',
        ["3: unknown key 'limts' in an entry of rules: did you mean 'limits'?"],
    ),
    (
        "an unknown section",
        "rules: []\nplan:\n  pro: {}",
        "rules = []\n[plan]\npro = {}",
        ["2: unknown key 'plan' in the file: did you mean 'plans'?"],
    ),
    (
        "nothing like what is known",
        "rules: []\nzzz: 1",
        "rules = []\nzzz = 1",
        ["2: unknown key 'zzz' in the file: use one of rules, plans"],
    ),
    (
        "a limit among others",
        "rules:\n  - id: x\n    limits:\n      - 1/s\n      - 10/fortnight",
        '[[rules]]\nid = "x"\nlimits = [\n  "1/s",\n  "10/fortnight",\n]',
        ["5: limit cannot be read from '10/fortnight'"],
    ),
    (
        "a limit by name",
        "rules:\n  - id: x\n    limits:\n      rpm: 1/s\n      tpm: 7",
        '[[rules]]\nid = "x"\n[rules.limits]\nrpm = "1/s"\ntpm = 7',
        ["5: limit 'tpm' cannot be read from 7"],
    ),
    (
        "one limit twice",
        "rules:\n  - id: x\n    limits: 1/s; 2/1000ms",
        '[[rules]]\nid = "x"\nlimits = "1/s; 2/1000ms"',
        ["3: limit 'second' is given twice"],
    ),
    (
        "wrong types",
        "rules:\n- id: 5\n  priority: high\n  shadow: yes\n  also: 1\n  per: [user]\n  cost: [1]\n  path: 7",
        '[[rules]]\nid = 5\npriority = "high"\nshadow = "yes"\nalso = 1\nper = ["user"]\ncost = [1]\npath = 7',
        [
            "2: rule id must be a string, not 5",
            "3: priority must be a whole number, not 'high'",
            "4: shadow must be true or false, not 'yes'",
            "5: also must be true or false, not 1",
            "6: per must be one of",
            "7: cost must be a number, not [1]",
            "8: path must start with '/'",
        ],
    ),
    (
        "a pattern and a method",
        "rules:\n\n  - id: x\n    path: /files/*.json\n    method: GET POST",
        '\n[[rules]]\nid = "x"\npath = "/files/*.json"\nmethod = "GET POST"',
        ["4: path '/files/*.json' cannot have '*' in '*.json'", "5: method must be like"],
    ),
    (
        "no id",
        "rules:\n  - path: /a\n\n  - path: /b",
        '\n[[rules]]\npath = "/a"\n[[rules]]\npath = "/b"',
        ["2: an entry of rules lacks 'id'", "4: an entry of rules lacks 'id'"],
    ),
    (
        "not rules",
        "rules:\n  x: {}\nplans:\n  - pro",
        '[rules]\nx = {}\n[[plans]]\na = "b"',
        ["1: rules must be a list, not a mapping", "3: plans must be a mapping, not a list"],
    ),
    (
        "not a rule, not a plan",
        "rules:\n  - 7\nplans:\n  pro: 1/s",
        'rules = [\n  7\n]\nplans.pro = "1/s"',
        ["2: an entry of rules must be a mapping, not 7", "4: pro must be a mapping, not '1/s'"],
    ),
    (
        "two of one id",
        "rules:\n  - id: x\n  - path: /a\n    id: x",
        '[[rules]]\nid = "x"\n[[rules]]\npath = "/a"\nid = "x"',
        ["3: rule 'x' is repeated"],
    ),
    (
        "two for the same",
        "rules:\n  - id: x\n  - id: z\n    method: '*'",
        '[[rules]]\nid = "x"\n[[rules]]\nid = "z"\nmethod = "*"',
        ["3: rule 'z' would never decide: 'x' matches the same"],
    ),
    (
        "a plan for no rule",
        "rules:\n  - id: search\nplans:\n  pro:\n    serch: 1/s\n    nothing-like-it: 1/s",
        '[[rules]]\nid = "search"\n[plans]\n[plans.pro]\nserch = "1/s"\nnothing-like-it = "1/s"',
        [
            "5: plan 'pro' names an unknown rule 'serch': did you mean 'search'?",
            "6: plan 'pro' names an unknown rule 'nothing-like-it': use one of search",
        ],
    ),
    (
        "a limit of a plan",
        "rules:\n  - id: x\nplans:\n  pro:\n    x: 10",
        '[[rules]]\nid = "x"\n[plans]\n[plans.pro]\nx = 10',
        ["5: limits must be like '10/minute'"],
    ),
    (
        "a cost of no limit",
        "rules:\n  - id: x\n    limits: rpm=9/s\n    cost:\n      rpm: 1\n      tpm: 1",
        '[[rules]]\nid = "x"\nlimits = "rpm=9/s"\n[rules.cost]\nrpm = 1\ntpm = 1',
        ["6: cost names an unknown limit 'tpm': did you mean 'rpm'?"],
    ),
    (
        "a cost of none of the limits",
        "rules:\n  - id: x\n    cost: {tpm: 1}\n    limits: 5/s",
        '[[rules]]\nid = "x"\ncost = {tpm = 1}\nlimits = "5/s"',
        ["3: rule 'x' would limit nothing: its cost names tpm, its limits are second"],
    ),
    (
        "a cost of none of the limits of a plan",
        "rules:\n  - id: x\n    cost: {tpm: 1}\nplans:\n  pro:\n    '*': 5/s",
        '[[rules]]\nid = "x"\ncost = {tpm = 1}\n\n[plans.pro]\n"*" = "5/s"',
        ["6: rule 'x' would limit nothing: its cost names tpm, its limits are second"],
    ),
    (
        "a cost too large",
        "rules:\n  - id: x\n    cost: 7\n    limits: 5/s",
        '[[rules]]\nid = "x"\ncost = 7\nlimits = "5/s"',
        ["3: rule 'x' would refuse every request: its cost is 7, and limit 'second' never holds more than 5"],
    ),
    (
        "a cost too large for a plan",
        "rules:\n  - id: x\n    cost: 7\nplans:\n  pro:\n    '*': 5/s",
        '[[rules]]\nid = "x"\ncost = 7\n\n[plans.pro]\n"*" = "5/s"',
        ["6: rule 'x' would refuse every request: its cost is 7"],
    ),
    (
        "mistakes in many places",
        "other: 1\nrules:\n  - id: x\n    path: a\nplans:\n  pro:\n    y: 1/s\n    x: 2",
        'other = 1\n[[rules]]\nid = "x"\npath = "a"\n\n[plans.pro]\ny = "1/s"\nx = 2',
        [
            "1: unknown key 'other' in the file",
            "4: path must start with '/'",
            "7: plan 'pro' names an unknown rule 'y': use one of x",
            "8: limits must be like",
        ],
    ),
    ("no rules", "plans: {}", "[plans]", ["1: the file has no rules"]),
]


@pytest.mark.parametrize("suffix", ["yaml", "toml"])
@pytest.mark.parametrize(("yaml", "toml", "expected"), [pytest.param(*case, id=name) for name, *case in MISTAKES])
def test_mistakes_in_a_file_are_reported_with_their_lines(
    tmp_path: Path, suffix: str, yaml: str, toml: str, expected: list[str]
) -> None:
    assert_like(problems(tmp_path, suffix, yaml if suffix == "yaml" else toml), expected)


def test_anchors_may_be_used(tmp_path: Path) -> None:
    text = "rules:\n- {id: x, limits: &l [1/s, 9/day]}\n- {id: z, path: /a, limits: *l}\n"
    text += "- {id: w, path: /b, limits: *l, cost: 2}"
    assert problems(tmp_path, "yaml", text) == [
        "4: rule 'w' would refuse every request: its cost is 2, and limit 'second' never holds more than 1"
    ]
    file = load(tmp_path, "yaml", text.replace("cost: 2", "cost: 1"))
    assert {rule.limits for rule in file.rules} == {(Limit.per_second("second", 1), Limit.per_day("day", 9))}


def test_a_cost_may_be_of_a_limit_that_some_plan_has_or_that_is_stored(tmp_path: Path) -> None:
    rules = "rules: [{id: x, limits: rpm=9/s, cost: {rpm: 1, tpm: 5}}, {id: z, path: /z, cost: {abc: 1}}]\n"
    plans = "plans: {pro: {'*': tpm=9/s, z: abc=9/s}, free: {z: abc=1/s}}"
    assert load(tmp_path, "yaml", rules + plans).rules["x"].cost == {"rpm": 1, "tpm": 5}
    assert_like(
        problems(tmp_path, "yaml", rules + "plans: {pro: {z: abc=9/s}}"), ["1: cost names an unknown limit 'tpm'"]
    )


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("yaml", "descriptors:\n  a: 1\nsystem: {b: [2, x]}"),
        ("toml", "descriptors.a = 1\n\nsystem = {b = [2, 'x']}"),
    ],
)
def test_sections_of_other_programs_are_kept_if_named_and_else_refused(tmp_path: Path, suffix: str, text: str) -> None:
    file = load(tmp_path, suffix, text, sections=["descriptors", "system", "entities"])
    assert len(file.rules) == 0
    assert {name: node.plain() for name, node in file.sections.items()} == {
        "descriptors": {"a": 1},
        "system": {"b": [2, "x"]},
    }
    assert_like(problems(tmp_path, suffix, text, sections=["descriptors"]), ["3: unknown key 'system' in the file"])
    descriptors = file.sections["descriptors"]
    assert descriptors.fields(["a"])["a"].text() is None
    with pytest.raises(DocumentError, match=rf":{descriptors.fields(['a'])['a'].line}: a must be a string, not 1$"):
        descriptors.document.check()


def test_bad_cost_with_a_mistake(tmp_path: Path) -> None:
    text = (
        "rules:\n- id: a\n  limits: 5/minute\n  bad_cost: ignore\n- id: b\n  limits: 5/minute\n  bad_cost: {hour: 1}\n"
    )
    wrong, unknown = problems(tmp_path, "yaml", text)
    assert wrong.startswith("4: bad_cost must be 'reject', or what to charge instead, like 1, not 'ignore'")
    assert unknown.startswith("5: rule 'b' would limit nothing")


LIMITS = st.sampled_from(
    ["10/minute burst 20", "10/second; 100/minute", ["7/15 minutes", "x=9/day"], {"rpm": "10/minute"}, "9 concurrent"]
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "path": PATTERNS,
        "method": st.sampled_from(["*", "GET", "get|post", ["PUT", "patch"]]),
        "limits": LIMITS,
        "cost": st.sampled_from([1, 3, 2.0]),
        "shadow": st.booleans(),
        "also": st.booleans(),
        "per": st.sampled_from(get_args(Per)),
        "bad_cost": st.sampled_from(["reject", 0, 1]),
    },
)


@pytest.mark.parametrize(("suffix", "writer"), [("yaml", YamlWriter), ("toml", TomlWriter)])
@given(
    fields=st.lists(FIELDS, max_size=6),
    plans=st.dictionaries(st.sampled_from(["free", "pro", "a b"]), st.dictionaries(st.sampled_from("*012"), LIMITS)),
    random=st.randoms(use_true_random=False),
)
def test_rules_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    writer: type[YamlWriter | TomlWriter],
    fields: list[dict[str, Any]],
    plans: dict[str, Any],
    random: Any,
) -> None:
    rules = [{"id": str(number), "priority": number, **more} for number, more in enumerate(fields)]
    ids = {"*", *(rule["id"] for rule in rules)}
    plans = {name: {id: limits for id, limits in plan.items() if id in ids} for name, plan in plans.items()}
    path = tmp_path_factory.getbasetemp() / f"written.{suffix}"
    path.write_text(writer(random).document({"plans": plans, "rules": rules}))
    file = load_rules(path)
    assert sorted(file.rules, key=lambda rule: rule.priority) == [Rule(**rule) for rule in rules]
    assert file.plans == {
        name: {id: read_limits(limits) for id, limits in plan.items()} for name, plan in plans.items()
    }
