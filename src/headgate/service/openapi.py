"""The OpenAPI document, from the table of operations and the types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from .. import __version__
from ..http.answer import PROBLEM_JSON
from .operations import JSON, Operation
from .schema import EntityId, NamespaceName, Problem, Resource

_REF = "#/components/schemas/{name}"
_RESPONSE = "#/components/responses/{status}"
_PARAMETERS: dict[str, Any] = {"entity_id": EntityId, "resource": Resource, "namespace": NamespaceName}
_LEASE_ID = {"type": "string", "pattern": "^[0-9a-f]{24}$", "description": "From `POST /v1/acquire`."}
_ABOUT = """\
Rate limits for programs in any language. A token has scopes: `decide` allows decisions and leases, `read` allows
reading, and `admin` allows both and changes of entities and limits. A token works in one namespace; `namespaces` allows
it to register, delete and purge any."""


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    schemas = _schemas([kind for one in operations for kind in (one.body, one.query, one.answer)])
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.template, {})[one.method.lower()] = _operation(one, schemas)
    shown = _schemas([kind for one in operations for kind in (one.body, one.answer)])
    statuses = sorted({status for one in operations for status in _problems(one)})
    return {
        "openapi": "3.1.0",
        "info": {"title": "headgate", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": shown,
            "responses": {str(status): _response(status, PROBLEM_JSON, Problem) for status in statuses},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(kinds: Iterable[type | None]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([Problem, *filter(None, kinds)], ref_template=_REF)
    return schemas


def _response(status: int, media: str, kind: type | None) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    return found if kind is None else found | {"content": _content(media, kind)}


def _operation(one: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    summary, _, more = one.words.partition("\n\n")
    found: dict[str, Any] = {"operationId": one.name, "tags": [one.tag], "summary": " ".join(summary.split())}
    if more:
        found["description"] = more
    parameters = [_in_path(name) for name in one.parameters]
    if one.query is not None:
        parameters += _in_query(schemas[one.query.__name__])
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        found["requestBody"] = {"required": True, "content": _content(JSON, one.body)}
    found["responses"] = _responses(one)
    if one.scope is not None:
        found["security"] = [{"token": []}]
        found["x-scope"] = one.scope
        found["description"] = "\n\n".join(filter(None, [more, f"Scope: `{one.scope}`."]))
    return found


def _in_path(name: str) -> dict[str, Any]:
    schema = dict(_LEASE_ID) if name == "lease_id" else _schema(_PARAMETERS[name])
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": inner}
        for name, inner in schema["properties"].items()
    ]


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _content(media: str, kind: type) -> dict[str, Any]:
    schema = {"type": "string"} if kind is bytes else {"$ref": _REF.format(name=kind.__name__)}
    return {media: {"schema": schema}}


def _responses(one: Operation) -> dict[str, Any]:
    found = {str(one.status): _response(one.status, one.media, one.answer)}
    return found | {str(status): {"$ref": _RESPONSE.format(status=status)} for status in sorted(_problems(one))}


def _problems(one: Operation) -> set[int]:
    found = {405, 421, 500, *one.problems}
    if one.scope is not None:
        found |= {400, 401, 403, 404, 422, 429, 503}
    if one.body is not None:
        found |= {413, 415}
    return found
