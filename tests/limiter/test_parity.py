"""The two limiters, and the two leases, have the same methods with the same signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import headgate
from headgate import Lease, RateLimiter, SyncLease, SyncRateLimiter

LIFE = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def public(kind: type) -> dict[str, Any]:
    return {
        LIFE.get(name, name): member
        for name, member in inspect.getmembers(kind)
        if callable(member) and (not name.startswith("_") or name in {*LIFE, *LIFE.values(), "__init__"})
    }


@pytest.mark.parametrize(("asynchronous", "blocking"), [(RateLimiter, SyncRateLimiter), (Lease, SyncLease)])
def test_same_methods_same_parameters(asynchronous: type, blocking: type) -> None:
    ours, theirs = public(asynchronous), public(blocking)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name == "__init__" and asynchronous is Lease:
            continue
        parameters = inspect.signature(ours[name]).parameters, inspect.signature(theirs[name]).parameters
        shown = [[(p.name, p.kind, p.default) for p in side.values()] for side in parameters]
        assert shown[0] == shown[1], name


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
def test_every_public_method_says_what_it_does(kind: type) -> None:
    undocumented = {
        name
        for name, method in public(kind).items()
        if not name.startswith("_") and not inspect.getdoc(method) and not name.startswith(("get_", "delete_"))
    }
    assert undocumented == set()


def test_every_public_name_can_be_imported() -> None:
    for name in headgate.__all__:
        assert hasattr(headgate, name)
