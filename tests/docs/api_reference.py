"""The page docs/api.md, made from the code: python tests/docs/api_reference.py > docs/api.md"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from functools import lru_cache
from types import ModuleType
from typing import Any

MODULES = (
    "headgate",
    "headgate.http",
    "headgate.http.fastapi",
    "headgate.http.flask",
    "headgate.http.django",
    "headgate.http.clients",
    "headgate.http.clients.httpx",
    "headgate.http.clients.requests",
    "headgate.declare",
    "headgate.replay",
    "headgate.metrics",
    "headgate.metrics.prometheus",
    "headgate.metrics.opentelemetry",
    "headgate.testing",
)
FIRST = ("RateLimiter", "SyncRateLimiter", "Limit", "Lease", "SyncLease", "Decision")
LIKE = {"SyncRateLimiter": "RateLimiter", "SyncLease": "Lease"}  # the same without await
IN_FULL = {"RateLimiter"}
GIVEN = {"HttpCall", "Decision", "Lease", "SyncLease"}  # nobody makes one
WIDTH = 100

INTRODUCTION = """\
# Python reference

Every public name, as the code has it. What they are for, with examples, is in the [guides](index.md); what can be set,
in one place, in [Configuration](configuration.md).

Methods that begin with `async` are awaited; those of `SyncRateLimiter` and `SyncLease` have the same names and
arguments, and are not. `acquire`, `slot` and `acquire_many` are used with `async with`, or `with`.
"""


def reference() -> str:
    """The whole page."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_lines())).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    for name in MODULES:
        module = importlib.import_module(name)
        yield f"## {name}\n"
        if name != "headgate":
            yield _prose(inspect.getdoc(module) or "")
        yield from _module(module)


def public_names(module: ModuleType) -> list[str]:
    """Those in `__all__`, or what is made in the module and has no underscore."""
    made = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", [name for name in made if name[0] != "_"]))


def _module(module: ModuleType) -> Iterator[str]:
    public = {name: getattr(module, name) for name in public_names(module)}
    errors = {name: value for name, value in sorted(public.items()) if _is_error(value)}
    rest = public.keys() - errors.keys()
    for name in [*(name for name in FIRST if name in rest), *sorted(rest - set(FIRST))]:
        yield from _entry(name, public[name])
    if errors:
        yield f"### {'Errors' if module.__name__ == 'headgate' else f'Errors of {module.__name__}'}\n"
        yield from _errors(errors)
    aliases = sorted(set(_aliases(public.values())))
    if aliases:
        yield f"\n### Types of {module.__name__}\n\nShort names in the signatures above.\n\n| | |\n|---|---|"
        yield from (f"| `{alias}` | `{_cell(meaning)}` |" for alias, meaning in aliases)
        yield ""


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"\n### {name}\n"
    if inspect.isclass(value):
        yield from _class(name, value)
    elif callable(value):
        yield _code(_signature(name, value))
        yield _prose(inspect.getdoc(value) or "")
    else:
        yield f"A {type(value).__name__} of {type(value[0]).__name__}.\n"


def _errors(errors: Mapping[str, type]) -> Iterator[str]:
    yield "When each is raised, and what to do: [Errors](errors.md).\n"
    yield "| error | is a | |\n|---|---|---|"
    for name, kind in errors.items():
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        yield f"| `{name}` | {bases} | {_first_sentence(kind)} |"
    for name, kind in errors.items():
        if any(_public_members(kind)):
            yield f"\n{name}:\n"
            yield from _members(kind)


def _class(name: str, kind: type) -> Iterator[str]:
    if name in LIKE:
        yield f"{_first_sentence(kind)} See [{LIKE[name]}](#{LIKE[name].lower()}).\n"
        return
    if name not in GIVEN and not getattr(kind, "_is_protocol", False):
        yield _code(_signature(name, kind))
    documented = inspect.getdoc(kind) or ""
    if not documented.startswith(f"{name}("):  # what dataclasses make up
        yield _prose(documented)
    if name in GIVEN:
        yield f"Attributes: {', '.join(f'`{attribute}`' for attribute in _attributes(kind))}.\n"
    if name in IN_FULL:
        yield from _members_in_full(name, kind)
    else:
        yield from _members(kind)


def _members(kind: type) -> Iterator[str]:
    rows = [
        (_signature(member, value, method=True), inspect.getdoc(value) or "") for member, value in _public_members(kind)
    ]
    if rows:
        yield "| | |\n|---|---|"
        for signature, text in rows:
            yield f"| `{_cell(signature)}` | {_cell(text)} |"
        yield ""


def _members_in_full(name: str, kind: type) -> Iterator[str]:
    members = list(_public_members(kind))
    yield "| | |\n|---|---|"
    for member, value in members:
        anchor = f"{name}.{member}".lower().replace(".", "")
        yield f"| [`{member}`](#{anchor}) | {_first_sentence(value)} |"
    for member, value in members:
        yield f"\n#### {name}.{member}\n"
        yield _code(_signature(member, value, method=True))
        yield _prose(inspect.getdoc(value) or "")


def _attributes(kind: type) -> list[str]:
    sources = [inspect.getsource(base.__init__) for base in kind.__mro__ if inspect.isfunction(base.__init__)]
    return sorted(set(re.findall(r"\bself\.([a-z]\w*)(?:: .*)? = ", "".join(sources))))


def _public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties in the order of the code, the class's own before those of its bases.

    Not those that a framework's own class has: it calls them.
    """
    ours = [base for base in kind.__mro__ if base.__module__.startswith("headgate")]
    theirs = {name for base in kind.__mro__ if base not in ours for name in vars(base)}
    for name in dict.fromkeys(name for base in ours for name in vars(base)):
        value = getattr(kind, name, None)
        if _is_public(name) and name not in theirs and (isinstance(value, property) or inspect.isroutine(value)):
            yield name, value


def _is_public(name: str) -> bool:
    return not name.startswith("_") and not name.endswith("_plan")


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _annotation(function: Any) -> str:
    """What a property gives, or a function returns; of a plan, what it comes to in the end."""
    text = str(inspect.signature(function).return_annotation)
    inner = re.fullmatch(r"(?:Plan\[|Coroutine\[Any, Any, )(.*)\]", text)
    return inner[1] if inner else text


def _code(signature: str) -> str:
    return f"```py\n{signature}\n```\n"


def _signature(name: str, value: Any, *, method: bool = False) -> str:
    """As it is written, on lines that fit."""
    if isinstance(value, property):
        return f"{name}: {_annotation(value.fget)}"
    head = f"class {name}" if inspect.isclass(value) else f"def {name}"
    if inspect.iscoroutinefunction(value) or hasattr(value, "_is_coroutine"):
        head = f"async {head}"
    parameters = list(_parameters(value))[method and not inspect.ismethod(value) :]  # self, or the limiter of a plan
    returns = "" if inspect.isclass(value) or _annotation(value) == "None" else f" -> {_annotation(value)}"
    line = f"{head}({', '.join(parameters)}){returns}"
    if len(line) > WIDTH:
        line = "\n".join([f"{head}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])
    return line


def _parameters(value: Any) -> Iterator[str]:
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except ValueError:  # an exception without a constructor of its own
        return
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        spelled = "" if default is parameter.empty else f" = {_default(default)}"
        yield f"{stars}{parameter.name}: {_type(parameter.annotation)}{spelled}"


def _type(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def _default(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    made_later = value is MISSING or type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
    return "..." if made_later or " at 0x" in repr(value) or repr(value).startswith("<") else repr(value)


def _prose(text: str) -> str:
    """A docstring as Markdown: what it says of each argument is a list."""
    lines = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("    "):
            lines.append(_code(textwrap.dedent(paragraph)).rstrip())
            continue
        spoken = re.sub(r"^(`[^`]+`(?:(?:,| and) `[^`]+`)*:)", r"- \1", paragraph, flags=re.MULTILINE)
        lines.append(re.sub(r"^([^-].*)\n- ", r"\1\n\n- ", spoken))
    return "\n\n".join(lines) + "\n"


def _first_sentence(value: Any) -> str:
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0]
    return _cell(re.split(r"(?<=\.)\s", paragraph)[0])


def _cell(text: str) -> str:
    """On one line, as a cell of a table."""
    return re.sub(r"\( | (?=\))|,(?= \))", lambda found: found[0].strip(" ,"), " ".join(text.split())).replace(
        "|", "\\|"
    )


def _aliases(values: Any) -> Iterator[tuple[str, str]]:
    """Names in the signatures that stand for longer types, and these."""
    for value in filter(callable, values):
        members = [member for _, member in _public_members(value)] if inspect.isclass(value) else []
        for function in [*members, *([value] if value.__name__ not in GIVEN else [])]:
            function = function.fget if isinstance(function, property) else inspect.unwrap(function)
            text = " ".join([*_parameters(function), "" if inspect.isclass(function) else _annotation(function)])
            places = function.__mro__ if inspect.isclass(function) else (function,)
            for name in re.findall(r"\b[A-Z]\w+", text):
                meaning = next(filter(None, (_alias(place.__module__, name) for place in places)), None)
                if meaning:
                    yield name, meaning


def _alias(module: str, name: str) -> str | None:
    if not module.startswith("headgate") or module not in sys.modules:
        return None
    made, imported = _names_in(module)
    return made.get(name) or (_alias(imported[name], name) if name in imported else None)


@lru_cache(None)
def _names_in(module: str) -> tuple[dict[str, str], dict[str, str]]:
    """What a module defines with a type, as it is written there; and from where it has the names that it imports."""
    source = inspect.getsource(sys.modules[module])
    made: dict[str, str] = {}
    imported: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            text = (
                node.value.value if isinstance(node.value, ast.Constant) else ast.get_source_segment(source, node.value)
            )
            made[ast.unparse(node.target)] = " ".join(str(text).split())
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(relative, sys.modules[module].__package__)
            imported |= {alias.name: origin for alias in node.names}
    return made, imported


if __name__ == "__main__":
    sys.stdout.write(reference())
