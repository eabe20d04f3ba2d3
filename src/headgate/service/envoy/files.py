"""Rules for descriptors from the file that has the other rules too, under `descriptors:`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...core.units import tokens_to_milli
from ...files import Node
from ...http.fields import check_flag, check_priority
from .descriptors import (
    DescriptorRule,
    Descriptors,
    check_domain,
    check_id,
    clashes,
    read_keys,
    read_match,
    read_tokens,
)

SECTION = "descriptors"
_REQUIRED = ("id", "domain", "match", "limits")
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "id": check_id,
    "domain": check_domain,
    "match": read_match,
    "limits": read_tokens,
    "cost": lambda cost: tokens_to_milli(cost, "cost"),
    "shadow": partial(check_flag, "shadow"),
    "debt": partial(check_flag, "debt"),
    "priority": check_priority,
    "secret": read_keys,
}


def read_descriptors(section: Node | None) -> Descriptors:
    """What `load_rules(path, sections=["descriptors"])` found there, or DocumentError with all that is wrong in it."""
    if section is None:
        return Descriptors()
    read = [(node, _rule(node)) for node in section.items()]
    rules = [(node, rule) for node, rule in read if rule is not None]
    for at, why in clashes([rule for _, rule in rules]):
        rules[at][0].wrong(why)
    section.document.check()
    return Descriptors(rule for _, rule in rules)


def _rule(node: Node) -> DescriptorRule | None:
    fields = node.fields(_FIELDS, _REQUIRED)
    good = [field.read(_FIELDS[key]) is not None for key, field in fields.items()]
    if not all(good) or not fields.keys() >= set(_REQUIRED):
        return None
    # What is left to be wrong is how they go together.
    return node.attempt(DescriptorRule, **{key: field.plain() for key, field in fields.items()})
