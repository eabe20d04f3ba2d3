"""The OpenAPI document as one HTML page, without scripts or external files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ..http.answer import HeaderList

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --dim: #5a6573; --line: #d9dee5; --back: #fff; --box: #f5f7f9;
  --get: #1664a8; --post: #197a45; --put: #8a5a00; --delete: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #9aa5b4; --line: #333c48; --back: #14181d;
  --box: #1c2229; --get: #7db8ec; --post: #6fce97; --put: #e0b35a; --delete: #f2938c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; } h2 { margin: 2.5rem 0 .5rem; font-size: 1.15rem; }
p { margin: .5rem 0; } a { color: inherit; }
code, pre { font: .875rem/1.45 ui-monospace, monospace; }
code { background: var(--box); padding: .1rem .25rem; border-radius: 3px; overflow-wrap: anywhere; }
pre { background: var(--box); padding: .75rem; border-radius: 6px; overflow-x: auto; margin: .5rem 0; }
pre code { padding: 0; background: none; overflow-wrap: normal; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
summary { display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: baseline; padding: .5rem .75rem;
  cursor: pointer; }
summary .what { color: var(--dim); flex-basis: 100%; }
summary:focus-visible { outline: 2px solid var(--get); outline-offset: 1px; border-radius: 6px; }
.inside { padding: 0 .75rem .75rem; border-top: 1px solid var(--line); }
.method { font: 600 .8rem ui-monospace, monospace; min-width: 4rem; }
.get { color: var(--get); } .post { color: var(--post); } .put, .patch { color: var(--put); }
.delete { color: var(--delete); }
.dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PAGE_HEADERS: HeaderList = [
    ("Content-Type", "text/html; charset=utf-8"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]
_CODE = re.compile(r"`([^`]+)`")


def page(document: Mapping[str, Any]) -> bytes:
    return "\n".join(_lines(document)).encode()


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>headgate API</title><style>{_STYLE}</style></head><body><main>"
    yield f'<h1>headgate <span class="dim">{escape(info["version"])}</span></h1>'
    yield f'<p>{_prose(info["description"])} The same as data: <a href="/openapi.json">openapi.json</a>.</p>'
    part: list[str] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] != part:
                part = operation["tags"]
                yield f"<h2>{escape(part[0].capitalize())}</h2>"
            yield from _operation(path, method, operation)
    yield "<h2>Types</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield f"<details><summary><code>{escape(name)}</code>"
        yield f'<span class="what">{_prose(schema.get("description", ""))}</span></summary>'
        yield f'<div class="inside" id="{escape(name)}">'  # a browser opens the details that a link points into
        yield from _fields(schema)
        yield "</div></details>"
    yield "</main></body></html>"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<details><summary><span class="method {method}">{method.upper()}</span><code>{escape(path)}</code>'
    yield f'<span class="what">{_prose(operation["summary"])}</span></summary><div class="inside">'
    for paragraph in operation.get("description", "").split("\n\n"):
        yield f"<p>{_prose(paragraph)}</p>" if paragraph else ""
    yield from _parameters(operation.get("parameters", []))
    if "requestBody" in operation:
        yield f"<p>Body: {_type(operation['requestBody']['content']['application/json']['schema'])}</p>"
    yield from _answers(operation["responses"])
    yield "</div></details>"


def _parameters(parameters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not parameters:
        return
    yield "<table><tr><th>parameter</th><th>in</th><th>type</th><th></th></tr>"
    for one in parameters:
        needed = "" if one["required"] else ' <span class="dim">optional</span>'
        yield f"<tr><td><code>{escape(one['name'])}</code>{needed}</td><td>{one['in']}</td>"
        yield f"<td>{_type(one['schema'])}</td><td>{_prose(one['schema'].get('description', ''))}</td></tr>"
    yield "</table>"


def _answers(responses: Mapping[str, Any]) -> Iterator[str]:
    problems = [status for status, answer in responses.items() if "$ref" in answer]
    for status in responses.keys() - set(problems):
        kinds = [_type(content["schema"]) for content in responses[status].get("content", {}).values()]
        yield f"<p>Response: {status} {' '.join(kinds)}</p>"
    yield f'<p class="dim">Or a <a href="#Problem">Problem</a>: {", ".join(problems)}</p>'


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties", {})
    if not properties:
        yield "<p>No fields.</p>"
        return
    required = schema.get("required", ())
    yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
    for name, inner in properties.items():
        needed = "" if name in required else ' <span class="dim">optional</span>'
        yield f"<tr><td><code>{escape(name)}</code>{needed}</td><td>{_type(inner)}</td>"
        yield f"<td>{_prose(inner.get('description', ''))}</td></tr>"
    yield "</table>"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        kinds = list(map(_type, schema["anyOf"]))
        return " or ".join(kind for kind in dict.fromkeys(kinds) if kind != "integer" or "number" not in kinds)
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return escape(str(schema.get("type", "anything")))


def _prose(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(" ".join(text.split())))
