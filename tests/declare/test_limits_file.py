"""Files of limits: read, refused with all that is wrong with them, and written."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from declare_helpers import LIGHTLY, declarations
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.declare import Declaration, DeclaredEntity, limits_schema, read_limits_file, write_limits
from headgate.http import DocumentError

EXAMPLE = Path(__file__).parents[2] / "examples" / "limits.yaml"
RPM = Limit.per_minute("rpm", 10)


def read(folder: Path, text: str, name: str = "limits.yaml") -> Declaration:
    (folder / name).write_text(text)
    return read_limits_file(folder / name)


def problems(folder: Path, text: str, name: str = "limits.yaml") -> list[str]:
    with pytest.raises(DocumentError) as refused:
        read(folder, text, name)
    return [problem.removeprefix(f"{folder / name}:") for problem in refused.value.problems]


def test_example_file_is_read_with_all_it_declares() -> None:
    declaration = read_limits_file(EXAMPLE)
    acme = declaration.entities["acme"]
    assert (acme.name, acme.parent_id, acme.cascade, acme.metadata) == ("Acme", "holding", True, {"plan": "pro"})
    assert acme.limits["gpt-4o"]["tpm"] == Limit.per_minute("tpm", 20_000)
    assert acme.limits[None] == {"rpm": Limit.per_minute("rpm", 200)}
    assert declaration.on_unavailable == "allow"
    assert declaration.plans == {"pro": {"search": "100/minute"}}
    assert [rule["id"] for rule in declaration.rules or []] == ["search"]


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    declaration = read_limits_file(EXAMPLE)
    for format in ("yaml", "toml"):
        assert read(tmp_path, write_limits(declaration, format), f"limits.{format}") == declaration


@settings(LIGHTLY, max_examples=50)
@example(
    Declaration(entities={"a": DeclaredEntity(metadata={"": "\x7f\x85\u2028\ufeff\\\"'#: ", "yes": "1_0", "-": "- a"})})
)
@given(declarations(of_all_kinds=True))
def test_what_is_written_reads_back(declaration: Declaration) -> None:
    for format in ("yaml", "toml"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"limits.{format}")
            path.write_text(write_limits(declaration, format), encoding="utf-8")
            assert read_limits_file(path) == declaration


def test_other_readers_of_yaml_read_the_same() -> None:
    """Also those to whom `no` is false and 2024-01-01 a date."""
    words = ["true", "No", "on", "y", "null", "~", "2024-01-01", "1_000", "0x1F", "0o7", "1e5", ".5", "1:30", "=", "<<"]
    odd = [
        "",
        " ",
        "-",
        "- a",
        "a: b",
        "a #b",
        "#",
        "@a",
        "`",
        "%a",
        "!a",
        "&a",
        "*a",
        "?",
        "|",
        ">",
        "a\nb",
        "10/minute",
    ]
    entity = DeclaredEntity(name="true", metadata={word: word for word in words + odd} | {"all": words + odd})
    declaration = Declaration(entities={"0": entity, "no": DeclaredEntity(name="null")})
    assert yaml.safe_load(write_limits(declaration)) == declaration.as_dict()


def test_a_value_that_no_file_can_hold_is_refused() -> None:
    with_null = Declaration(entities={"a": DeclaredEntity(metadata={"none": None})})
    assert "none: null" in write_limits(with_null)
    with pytest.raises(ValidationError, match="a null, which TOML does not have: write YAML"):
        write_limits(with_null, "toml")
    with pytest.raises(ValidationError, match="cannot be written to a file"):
        write_limits(Declaration(entities={"a": DeclaredEntity(name="\ud800")}))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("nonsense: 1", ["1: unknown key 'nonsense' in the file: use one of namespace, system, resources, entities,"]),
        ("entites: {}", ["1: unknown key 'entites' in the file: did you mean 'entities'?"]),
        ("[]", ["1: the file must be a mapping, not a list"]),
        ("namespace: a/b", ["1: namespace 'a/b' is not allowed"]),
        ("system: {}", ["1: system lacks 'limits'"]),
        ("system:\n  limits: {}", ["2: limits must not be empty"]),
        ("system:\n  limits: {rpm: 1/minute}\n  on_unavailable: maybe", ["3: on_unavailable must be 'block', 'allow'"]),
        ("resources: {gpt: {rpm: 1/minute}}", ["1: gpt lacks 'limits'", "1: unknown key 'rpm' in gpt"]),
        ("resources:\n  a b: {limits: {rpm: 1/minute}}", ["2: resource 'a b' is not allowed"]),
        ("entities:\n  a#b: {}", ["2: entity_id 'a#b' is not allowed"]),
        ("entities:\n  a: {}\n  a: {}", ["3: the key 'a' is repeated; it is first on line 2"]),
        ("entities:\n  a:\n    limits:\n      rpm: 0/minute", ["4: capacity of limit 'rpm' must be more than zero"]),
        ("entities:\n  a:\n    limits:\n      rpm: 9_999_999_999_999/minute", ["4: capacity of limit 'rpm' must be"]),
        ("entities:\n  a:\n    limits:\n      rpm: 5/400 days", ["4: refill_period_seconds of limit 'rpm' must"]),
        ("entities:\n  a:\n    limits:\n      rpm: 100", ["4: limit 'rpm' cannot be read from 100: write it like"]),
        ("entities:\n  a:\n    limits:\n      1st: 1/day", ["4: limit name '1st' is not allowed"]),
        ("entities:\n  a:\n    limits: [1/day]", ["3: limits must be a mapping, not a list"]),
        ("entities:\n  a:\n    cascade: yes", ["3: cascade must be true or false, not 'yes'"]),
        ("system:\n  limits: {rpm: 1/minute}\n  inherit: no", ["3: inherit must be true or false, not 'no'"]),
        ("resources:\n  a:\n    limits: {r: 1/day}\n    inherit:", ["4: inherit must be true or false, not nothing"]),
        ("entities:\n  a:\n    inherit: false", ["3: inherit needs limits: add some, or leave it out"]),
        ("entities:\n  a:\n    metadata: text", ["3: metadata must be a dict that JSON can hold"]),
        ("entities:\n  a:\n    metadata: {big: 1e999}", ["3: metadata must be a dict that JSON can hold"]),
        ("entities:\n  a:\n    name:", ["3: name has no value: give it one, or leave it out"]),
        (f"entities:\n  a:\n    name: {'x' * 257}", ["3: name must be a string of at most 256 characters"]),
        ("entities:\n  a:\n    parent: b c", ["3: entity_id 'b c' is not allowed"]),
        ("entities:\n  a:\n    parent: a", ["3: parent 'a' of 'a' makes a cycle: a -> a"]),
        (
            "entities:\n  a: {parent: b}\n  b: {parent: c}\n  c: {parent: a}\n  d: {parent: a}",
            [
                "2: parent 'b' of 'a' makes a cycle: a -> b -> c -> a",
                "3: parent 'c' of 'b' makes a cycle: b -> c -> a -> b",
                "4: parent 'a' of 'c' makes a cycle: c -> a -> b -> c",
            ],
        ),
        ("rules:\n  - id: a\n    limit: 1/day\nplans: {pro: {b: 1/day}}", ["3: unknown key 'limit'", "4: plan 'pro'"]),
        ("a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
         "c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n"
         "e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]",
         ["1: the file has more than 250,000 values"]),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_the_lines_of_all_mistakes(text: str, wrong: list[str], tmp_path: Path) -> None:
    found = problems(tmp_path, text)
    assert [problem[: len(start)] for problem, start in zip(found, wrong)] == wrong
    assert len(found) == len(wrong)


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    text = """
namespace = "a b"
[resources.api]
limits = {rpm = "never"}
[entities.acme]
parent = "acme"
colour = "red"
[entities.acme.limits]
rpm = "-1/minute"
[[rules]]
id = "a b"
"""
    assert [problem.partition(":")[0] for problem in problems(tmp_path, text, "limits.toml")] == [
        "2", "4", "6", "7", "9", "11",
    ]  # fmt: skip


def test_more_ancestors_than_there_may_be(tmp_path: Path) -> None:
    chain = ["  e0: {}", *(f"  e{at}: {{parent: e{at - 1}}}" for at in range(1, 10))]
    read(tmp_path, "\n".join(["entities:", *chain[:9]]))
    assert problems(tmp_path, "\n".join(["entities:", *chain])) == ["11: parent 'e8' gives 'e9' more than 8 ancestors"]


def test_a_file_may_be_large(tmp_path: Path) -> None:
    many = "".join(f"  entity-{at:06}: {{name: {'x' * 250}, limits: {{rpm: 10/minute}}}}\n" for at in range(4000))
    assert len(many) > 1024 * 1024
    assert len(read(tmp_path, f"entities:\n{many}").entities) == 4000
    with pytest.raises(DocumentError, match="it is larger than 16,777,216 bytes"):
        read(tmp_path, "#" * (16 * 1024 * 1024 + 1))


# The schema


VALIDATOR = jsonschema.Draft202012Validator(json.loads(limits_schema()))


@LIGHTLY
@given(declarations(of_all_kinds=True))
def test_whatever_is_written_goes_with_the_schema(declaration: Declaration) -> None:
    VALIDATOR.validate(declaration.as_dict())


def test_the_schema_is_one_and_the_example_goes_with_it() -> None:
    VALIDATOR.check_schema(VALIDATOR.schema)
    VALIDATOR.validate(read_limits_file(EXAMPLE).as_dict())


@pytest.mark.parametrize(
    "written",
    [
        {"entites": {}},
        {"system": {"on_unavailable": "allow"}},
        {"system": {"limits": {}}},
        {"system": {"limits": {"rpm": "ten"}}},
        {"system": {"limits": {"rpm": 10}}},
        {"resources": {"gpt": {"rpm": "1/minute"}}},
        {"resources": {"a b": {"limits": {"rpm": "1/minute"}}}},
        {"entities": {"a/b": {}}},
        {"entities": {"a": {"cascade": "yes"}}},
        {"entities": {"a": {"colour": "red"}}},
        {"entities": {"a": {"inherit": False}}},
        {"resources": {"a": {"limits": {"rpm": "1/minute"}, "inherit": "no"}}},
        {"system": {"inherit": False}},
        {"rules": [{"path": "/**"}]},
        {"rules": [{"id": "a", "per": "nobody"}]},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(written: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(written)
    problems(tmp_path, json.dumps(written))


@LIGHTLY
@given(st.from_regex(r"\A[ ]?[0-9][0-9_.]{0,3} ?(/| per |x)?[0-9]{0,2} ?[a-z]{0,6}( burst [0-9])?\Z"))
def test_the_schema_allows_every_limit_that_can_be_read(spec: str) -> None:
    try:
        Limit.parse("rpm", spec)
    except ValidationError:
        return
    VALIDATOR.validate({"system": {"limits": {"rpm": spec}}})


def test_an_empty_declaration_is_an_empty_file() -> None:
    nothing = Declaration()
    assert write_limits(nothing) == "{}\n"
    assert write_limits(replace(nothing, namespace="blue"), "toml") == 'namespace = "blue"\n'
