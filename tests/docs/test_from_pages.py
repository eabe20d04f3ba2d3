"""The pages for those who come from another limiter name calls that it really has, and calls that headgate has.

The other packages come with the benchmarks (`pip install -e '.[bench]'`); where one is missing, its page is not held to
it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from doc_pages import DOCS

import headgate
import headgate.http
from headgate.http.fastapi import FastAPILimits, RateLimited

# What the names in the first columns are: a module and what is in it.
ZAE = {
    **{name: f"zae_limiter:{name}" for name in ("Repository", "RateLimiter", "SyncRateLimiter", "Limit")},
    **{name: f"zae_limiter:{name}" for name in ("OnUnavailable", "RateLimitExceeded", "EntityNotFoundError")},
    **{name: f"zae_limiter:{name}" for name in ("EntityExistsError", "LeaseExpiredError", "NamespaceNotFoundError")},
    "ZAELimiterError": "zae_limiter:ZAELimiterError",
    "limiter": "zae_limiter:RateLimiter",
    "repo": "zae_limiter:Repository",
    "lease": "zae_limiter:Lease",
}
LIMIFY = {
    "RedisAsyncAdapter": "limify.core.redis_adapter:RedisAsyncAdapter",
    "RedisSyncAdapter": "limify.core.redis_adapter:RedisSyncAdapter",
    "AsyncTokenBucketAlgorithm": "limify.core.algorithms.token_bucket:AsyncTokenBucketAlgorithm",
    "TokenBucketAlgorithm": "limify.core.algorithms.token_bucket:TokenBucketAlgorithm",
    "algorithm": "limify.core.algorithms.token_bucket:AsyncTokenBucketAlgorithm",
    "Limify": "limify:Limify",
    "LimifyConfig": "limify:LimifyConfig",
    "LimifyMiddleware": "limify.adapters.fastapi.middleware:LimifyMiddleware",
    "RequestContext": "limify.core.context:RequestContext",
    "CustomPlanProvider": "limify.plan_provider:CustomPlanProvider",
    "Plan": "limify.core.plans:Plan",
    "limiter": "limify.core.limiter:Limiter",
    "result": "limify.core.limiter:LimitationResult",
}
SLOWAPI = {
    "Limiter": "slowapi:Limiter",
    "limiter": "slowapi:Limiter",
    "_rate_limit_exceeded_handler": "slowapi:_rate_limit_exceeded_handler",
    "SlowAPIMiddleware": "slowapi.middleware:SlowAPIMiddleware",
    "SlowAPIASGIMiddleware": "slowapi.middleware:SlowAPIASGIMiddleware",
    "RateLimitExceeded": "slowapi.errors:RateLimitExceeded",
}
LIMITS = {
    **{name: f"limits:{name}" for name in ("parse", "parse_many", "RateLimitItemPerMinute")},
    "storage_from_string": "limits.storage:storage_from_string",
    **{
        name: f"limits.strategies:{name}"
        for name in ("MovingWindowRateLimiter", "FixedWindowRateLimiter", "SlidingWindowCounterRateLimiter")
    },
    "limiter": "limits.strategies:MovingWindowRateLimiter",
}
PAGES = {
    ("from-zae-limiter.md", "zae-limiter"): ("zae_limiter", ZAE),
    ("from-limify.md", "Limify"): ("limify", LIMIFY),
    ("from-slowapi.md", "slowapi"): ("slowapi", SLOWAPI),
    ("from-slowapi.md", "limits"): ("limits", LIMITS),
}
OURS: dict[str, Any] = {
    **{name: getattr(headgate, name) for name in headgate.__all__},
    **{name: getattr(headgate.http, name) for name in headgate.http.__all__},
    "limits": FastAPILimits,
    "FastAPILimits": FastAPILimits,
    "RateLimited": RateLimited,
    "limiter": headgate.RateLimiter,
    "decision": headgate.Decision,
}


def rows(page: str, head: str) -> list[tuple[str, str]]:
    """Of the table of calls whose first column has this head."""
    text = (DOCS / page).read_text()
    tables = re.findall(rf"^\| {head} \| headgate \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    found = [re.split(r"(?<!\\) \| ", line.strip().strip("|").strip()) for line in tables[-1].splitlines()]
    return [(theirs, ours) for theirs, ours in found]


def spans(cell: str) -> list[str]:
    return [span.replace("\\|", "|") for span in re.findall(r"`([^`]+)`", cell)]


def calls(code: str) -> Iterator[tuple[list[str], list[str]]]:
    """Dotted names with the names of their keyword arguments."""
    tree = ast.parse(code.replace("[...]", "[]").replace("{...}", "{}").replace("(...)", "()"))
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        parts: list[str] = []
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            parts.insert(0, at.attr)
            at = at.value
        if isinstance(at, ast.Name) and (parts or isinstance(node, ast.Name)):
            call = called.get(id(node))
            yield [at.id, *parts], [each.arg for each in call.keywords if each.arg] if call else []


def held_to(known: Mapping[str, Any], code: str) -> int:
    """All names that are known have what is named of them. How many those are."""
    count = 0
    for (first, *rest), keywords in calls(code):
        if first not in known:
            continue
        found = known[first]
        for part in rest:
            assert part in _members(found), f"{code}: {first} has no {part}"
            found = getattr(found, part, None)
        if keywords:
            parameters = inspect.signature(found).parameters
            assert set(keywords) <= set(parameters) or any(
                each.kind is each.VAR_KEYWORD for each in parameters.values()
            ), f"{code}: takes {list(parameters)}"
        count += 1
    return count


def _members(found: Any) -> set[str]:
    """Those of its objects too, as far as the source of the class names them."""
    source = inspect.getsource(found) if inspect.isclass(found) else ""
    return set(dir(found)) | set(getattr(found, "__annotations__", ())) | set(re.findall(r"self\.(\w+)", source))


def is_python(span: str) -> bool:
    try:
        return "=" not in span.split("(")[0] and bool(ast.parse(span.replace("...", "")))
    except SyntaxError:
        return False


@pytest.mark.parametrize(("page", "head"), PAGES)
def test_the_other_package_has_the_calls_of_the_first_column(page: str, head: str) -> None:
    package, named = PAGES[page, head]
    pytest.importorskip(package)
    known = {}
    for name, place in named.items():
        module, _, attribute = place.partition(":")
        known[name] = getattr(importlib.import_module(module), attribute)
    checked = {
        span: held_to(known, span) for theirs, _ in rows(page, head) for span in spans(theirs) if is_python(span)
    }
    assert sum(checked.values()) >= len(named)
    odd = [span for span, count in checked.items() if not count and re.match(r"\w+[.(]", span)]
    assert odd == ["as_dict()"] * (package == "zae_limiter"), "every call is of something that is looked at"


@pytest.mark.parametrize(("page", "head"), PAGES)
def test_headgate_has_the_calls_of_the_second_column(page: str, head: str) -> None:
    checked = 0
    for _, ours in rows(page, head):
        for span in spans(ours):
            if not is_python(span):
                continue
            checked += held_to(OURS, span)
            for (first, *rest), keywords in calls(span):
                if f"{first}(" in span and first not in OURS and not rest:
                    method = getattr(headgate.RateLimiter, first)
                    assert set(keywords) <= set(inspect.signature(method).parameters), span
                    checked += 1
    assert checked >= len(rows(page, head)) // 3
