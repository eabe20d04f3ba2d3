"""Documents: whatever is written can be read, each value knows its line, and says what it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from document_writers import TomlWriter, YamlWriter
from hypothesis import given
from hypothesis import strategies as st
from rules_helpers import assert_like, problems

from headgate import ValidationError
from headgate.files import DocumentError, Node, read_document
from headgate.http.rules_file import load_rules

WORDS = st.sampled_from(["a", "b", "true", "x y", "", "*", "#", "a.b", "é", "\"'", "'", "\\", "[", "=", "- a: b", "7"])
LINES = st.sampled_from(["a\nb", "\n", 'x\n"""\n\\ \n"', '""', "a\n[b]\n c = 1\n"])
NUMBERS = st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    WORDS | LINES | NUMBERS | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
WRITERS = [("yaml", YamlWriter), ("toml", TomlWriter)]


def lines(node: Node, place: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    inner: dict[Any, Node] = {}
    if isinstance(node.value, (dict, list)):
        inner = node.value if isinstance(node.value, dict) else dict(enumerate(node.value))
    found = {place: node.line} if place else {}
    for key, item in inner.items():
        found.update(lines(item, (*place, key)))
    return found


@pytest.mark.parametrize(("suffix", "writer"), WRITERS)
@given(data=st.dictionaries(WORDS, VALUES, max_size=5), random=st.randoms(use_true_random=False))
def test_every_value_knows_its_line(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, writer: type[YamlWriter | TomlWriter], data: Any, random: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / f"random.{suffix}"
    written = writer(random)
    path.write_text(written.document(data))
    root = read_document(path)
    assert root.plain() == data
    assert lines(root) == written.lines
    root.document.check()


def test_what_a_node_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("[word, 1, 1.5, true, ~, {a: 1}, '1', 1e3, yes, 0x1F, 2024-01-01, .inf, '']")
    root = read_document(tmp_path / "x.yaml")
    nodes = root.items()
    assert [node.text() for node in nodes[:6]] == ["word", None, None, None, None, None]
    assert [node.text() for node in nodes[6:]] == ["1", None, "yes", "0x1F", "2024-01-01", ".inf", ""]
    assert [node.whole() for node in nodes[:6]] == [None, 1, None, None, None, None]
    assert [node.number() for node in nodes[:8]] == [None, 1, 1.5, None, None, None, None, 1000]
    assert [node.flag() for node in nodes[:6]] == [None, None, None, True, None, None]
    assert [len(node.items()) + len(node.entries()) for node in nodes[:6]] == [0, 0, 0, 0, 0, 1]
    assert nodes[5].fields(["b"], required=["b"]) == {}
    with pytest.raises(DocumentError) as caught:
        root.document.check()
    said = {problem.rpartition("entry of the file ")[2] for problem in caught.value.problems}
    assert {"must be a string, not nothing", "must be a number, not True", "must be true or false, not 1"} <= said
    assert {"must be a list, not a mapping", "lacks 'b'"} <= said


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{previous}'] * 10)}]" for previous, name in zip("abcde", "bcdef")
)
DEEP = "a: &a [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]\nb: [[[[[[[[[[[[[[[[[*a]]]]]]]]]]]]]]]]]\n"


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rules: [\n\n", ["3: this is not YAML: "]),
        ("rules:\n\t- id: x", ["2: this is not YAML: found character"]),
        ("rules: []\n  plans: {}", ["2: this is not YAML: "]),
        ("", ["1: the file must be a mapping, not nothing"]),
        ("# nothing\n", ["1: the file must be a mapping, not nothing"]),
        ("- rules", ["1: the file must be a mapping, not a list"]),
        ("rules: []\n---\nrules: []", ["2: a second document starts here"]),
        ("rules: []\n\nrules: []", ["3: the key 'rules' is repeated; it is first on line 1"]),
        ("rules:\n- id: x\n  path: /\n  id: z", ["4: the key 'id' is repeated; it is first on line 2"]),
        ("rules:\n- id: x\n  limits:\n  path:", ["3: limits has no value", "4: path has no value"]),
        (
            "rules:\n- id: x\n  cost: !!python/object/apply:os.abort []",
            ["3: cost must be a number", "3: the tag 'tag:yaml.org,2002:python"],
        ),
        ("rules:\n- id: x\n  shadow: !mine true", ["3: the tag '!mine' is not supported"]),
        ("rules:\n- id: x\n? [a, b]\n: 1", ["3: a key must be a string, not a list", "3: unknown key ''"]),
        ("rules:\n- &x {id: x}\n- {<<: *x, path: /a}", ["3: an entry of rules lacks 'id'", "3: unknown key '<<' in"]),
        ("rules: &x [*x]", ["1: unknown anchor *x: it must end before"]),
        ("rules:\n- *nobody", ["2: unknown anchor *nobody"]),
        (f"{BOMB}\nrules: [*f]", ["1: the file has more than 250,000 values"]),
        (DEEP, ["1: values are nested more than 32 deep"]),
        ("[" * 50_000, ["1: values are nested more than 32 deep"]),
    ],
)
def test_mistakes_in_yaml_are_reported_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str], loader: str
) -> None:
    if loader == "SafeLoader":
        monkeypatch.delattr("yaml.CSafeLoader")
    assert_like(problems(tmp_path, "yaml", text), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[rules]\n", ["1: this is not TOML: "]),
        ('[[rules]]\nid = "x"\nid = "y"', ["3: this is not TOML: Cannot overwrite a value"]),
        ("[[rules]]\nid = ", ["2: this is not TOML: Invalid value"]),
        ('rules = [\n{id = "x"},\n', ["3: this is not TOML: "]),
        ("rules = []\n[plans]\npro = 2024-01-01", ["3: pro is a date or a time", "3: pro must be a mapping"]),
        ("rules = [" + "9" * 5_000 + "]", ["1: this is not TOML: "]),
        ("rules = " + "[" * 40 + "]" * 40, ["1: values are nested more than 32 deep"]),
        ("rules = " + "[" * 20_000, ["1: values are nested too deep"]),
        ("", ["1: the file has no rules"]),
    ],
)
def test_mistakes_in_toml_are_reported_with_their_lines(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert_like(problems(tmp_path, "toml", text), expected)


@pytest.mark.parametrize("suffix", ["yaml", "toml"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"# \n# \xff", "2: byte 0xff is not UTF-8"),
        (b"# \n# \n\x00", "3: the character '\\x00' is not allowed in this file"),
        (b"#" * (1024 * 1024 + 1), " it is larger than 1,048,576 bytes"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, suffix: str, data: bytes, expected: str) -> None:
    assert problems(tmp_path, suffix, data) == [expected]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"missing\.yaml: it cannot be read: No such file"):
        load_rules(tmp_path / "missing.yaml")
    with pytest.raises(DocumentError, match="it cannot be read"):
        (tmp_path / "folder.toml").mkdir()
        load_rules(tmp_path / "folder.toml")
    with pytest.raises(ValidationError, match=r"rules.json' must end with one of .yaml, .yml, .toml"):
        load_rules("rules.json")


def test_the_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.yaml").write_text("rules:\n- 5")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DocumentError, match=r"^rules\.yaml:2: an entry of rules must be a mapping, not 5$"):
        load_rules("rules.yaml")


def test_a_message_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules:\n" + "- 5\n" * 1_000)
    with pytest.raises(DocumentError) as caught:
        load_rules(tmp_path / "rules.yaml")
    assert len(caught.value.problems) == 1_000
    assert len(str(caught.value).splitlines()) == 51
    assert str(caught.value).endswith("(and 950 more)")


@pytest.mark.parametrize(
    ("suffix", "module", "text"), [("yaml", "yaml_file", "needs PyYAML"), ("toml", "toml_file", "needs tomli")]
)
def test_a_missing_parser_is_reported_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str, text: str
) -> None:
    monkeypatch.delitem(sys.modules, f"headgate.files.{module}", raising=False)
    for parser in ("yaml", "tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, parser, None)
    with pytest.raises(ValidationError, match=rf"{text}: pip install 'headgate\[http\]'"):
        problems(tmp_path, suffix, "")


@pytest.mark.parametrize(
    ("suffix", "text"), [("yaml", "a: 1\r\nb:\r\n  - x\r\n"), ("toml", "a = 1\r\nb = [\r\n'x']\r\n")]
)
def test_a_mark_at_the_start_and_other_ends_of_lines_mean_nothing(tmp_path: Path, suffix: str, text: str) -> None:
    (tmp_path / f"x.{suffix}").write_bytes(b"\xef\xbb\xbf" + text.encode())
    root = read_document(tmp_path / f"x.{suffix}")
    assert root.plain() == {"a": 1, "b": ["x"]}
    assert lines(root) == {("a",): 1, ("b",): 2, ("b", 0): 3}
