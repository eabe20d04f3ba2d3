"""The contract is written once: a store's method has its signature there, and its body in each store."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from headgate.stores import open_async_store, open_store
from headgate.stores.contract import AsyncStore, Store, StoreMethods, StorePlans

METHODS = {name: method for name, method in vars(Store).items() if not name.startswith("_") and callable(method)}
DERIVED = sorted(METHODS.keys() - {"settle", "close"})  # a store of a server has these two of its own
SERVERS = ["redis://localhost", "postgresql://localhost/db", "dynamodb://table?region=eu-west-1"]
# The contract, five stores, and one more of DynamoDB: its plans pass some calls on to the modules of its items.
MOST_MODULES = 7


def folder() -> Path:
    spec = find_spec("headgate.stores")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def functions() -> Iterator[tuple[str, str]]:
    """Each module of the stores with the name of each function in it."""
    for module in sorted(folder().rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield str(module.relative_to(folder())), node.name


def test_the_contract_has_fourteen_methods() -> None:
    assert len(METHODS) == 14


@pytest.mark.parametrize("method", DERIVED)
def test_a_contract_method_is_defined_in_few_modules(method: str) -> None:
    modules = {module for module, name in functions() if name in (method, f"{method}_plan")}
    assert len(modules) <= MOST_MODULES, sorted(modules)
    places = Counter(module.rpartition("/")[0] for module in modules)
    assert places.pop("dynamodb") <= 2, sorted(modules)
    assert set(places.values()) == {1}, f"the contract and each store have it once: {sorted(modules)}"


def test_the_derived_interfaces_have_every_contract_method() -> None:
    public = {name for name in vars(AsyncStore) if not name.startswith("_")}
    assert public == METHODS.keys()
    assert {name for name in vars(StoreMethods) if not name.startswith("_")} == set(DERIVED)
    plans = {name.removesuffix("_plan") for name in vars(StorePlans) if name.endswith("_plan")}
    assert plans == set(DERIVED)


@pytest.mark.parametrize("url", SERVERS)
@pytest.mark.parametrize("method", DERIVED)
def test_a_plan_has_the_parameters_of_the_contract(url: str, method: str) -> None:
    plans: Any = type(open_store(url, 1.0)._plans)  # type: ignore[attr-defined]
    assert parameters(getattr(plans, f"{method}_plan")) == parameters(METHODS[method])


@pytest.mark.parametrize("url", ["memory://", "sqlite:///unused.db"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_store_in_the_process_has_the_signatures_of_the_contract(url: str, method: str) -> None:
    assert signature(getattr(type(open_store(url, 1.0)), method)) == signature(METHODS[method])


@pytest.mark.parametrize("url", [*SERVERS, "memory://", "sqlite:///unused.db"])
@pytest.mark.parametrize("open_any", [open_store, open_async_store])
def test_a_store_has_every_contract_method(url: str, open_any: Any) -> None:
    store = open_any(url, 1.0)
    assert [method for method in METHODS if not callable(getattr(store, method, None))] == []


def parameters(function: Any) -> list[Any]:
    return list(signature(function).parameters.values())
