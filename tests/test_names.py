"""Names of the code: a word has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import headgate

SOURCE = Path(headgate.__file__).parent
# Each has the same name in two libraries' modules, since users import one of them: `headgate.http.clients.httpx2`.
ONE_FOR_EACH_LIBRARY = {"AsyncHeadgateTransport", "HeadgateTransport", "RateLimitMiddleware"}


def test_no_two_public_classes_share_a_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(SOURCE)))
    shared = {name: found for name, found in modules.items() if len(found) > 1 and name not in ONE_FOR_EACH_LIBRARY}
    assert shared == {}
    assert all(len(modules[name]) == 2 for name in ONE_FOR_EACH_LIBRARY)


def test_plans_use_public_names_of_the_engine_only() -> None:
    """Plans are written against the engine, http and the service against the limiter."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: .{node.attr}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and _names(node.value) & {"engine", "limiter"}
    ]
    assert found == []


def _names(node: ast.expr) -> set[str]:
    """`engine`, of `engine`, `self.engine` and `self._engine`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return {name.lstrip("_")}
