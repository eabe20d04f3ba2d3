"""Rules and plans from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

from ..core.limit import Limit
from ..core.written import is_schedule
from ..files import Node, read_document
from ..files.schedule import read_schedule
from .fields import check_bad_cost, check_cost, check_flag, check_id, check_per, check_priority, read_method
from .limits import RuleLimits, read_limits, read_rule_limits, variants
from .pattern import Pattern
from .rules import Rule, Rules, clashes
from .tiers import ANY_RULE

Tier: TypeAlias = "Mapping[str, RuleLimits]"

_FIELDS: dict[str, Callable[[Any], Any]] = {
    "id": check_id,
    "path": lambda path: Pattern(path).text,
    "method": lambda method: read_method(method) or "*",
    "limits": read_rule_limits,
    "priority": check_priority,
    "cost": check_cost,
    "shadow": partial(check_flag, "shadow"),
    "per": check_per,
    "also": partial(check_flag, "also"),
    "bad_cost": check_bad_cost,
}


class RulesFile(NamedTuple):
    """The contents of a rules file. `plans` has limits by plan and rule; `"*"` is any rule it does not name."""

    rules: Rules
    plans: Mapping[str, Tier]
    sections: Mapping[str, Node]


def load_rules(path: str | PathLike[str], sections: Iterable[str] = ()) -> RulesFile:
    """Read `rules` and `plans` of a `.yaml` or `.toml` file, or raise DocumentError with all mistakes in it.

    `sections` names further sections that the file may have. They are returned unread: call `node.document.check()`
    after reading them.
    """
    root = read_document(path)
    others = tuple(sections)
    found = root.fields(("rules", "plans", *others))
    if isinstance(root.value, dict) and not found.keys() - {"plans"}:
        root.wrong("the file has no rules")
    rules, tiers = read_rules(found)
    root.document.check()
    return RulesFile(Rules(rules), tiers, {name: found[name] for name in others if name in found})


def read_rules(found: Mapping[str, Node]) -> tuple[list[Rule], dict[str, Tier]]:
    """The valid part of the sections `rules` and `plans` of a file. Mistakes are recorded."""
    nodes = found["rules"].items() if "rules" in found else []
    rules = _rules(nodes)
    tiers = _tiers(found["plans"], _ids(nodes), rules.values()) if "plans" in found else {}
    for node, rule in rules.items():
        _check_names(node, "cost", rule, tiers)
        _check_names(node, "bad_cost", rule, tiers)
    return [*rules.values()], tiers


def _rules(nodes: Iterable[Node]) -> dict[Node, Rule]:
    """The valid rules."""
    rules = {node: rule for node in nodes if (rule := _rule(node))}
    for at, clash in clashes([*rules.values()]):
        [*rules][at].wrong(clash)
    return rules


def _rule(node: Node) -> Rule | None:
    fields = node.fields(_FIELDS, required=["id"])
    checked: dict[str, Any] = {
        key: _rule_limits(field) if key == "limits" else field.read(_FIELDS[key]) for key, field in fields.items()
    }
    if "id" not in checked or None in checked.values():
        return None
    # What can still be wrong is that the cost does not fit the limits.
    return fields.get("cost", node).attempt(Rule, **checked)


def _rule_limits(node: Node) -> RuleLimits | None:
    return read_schedule(node, _limits) if is_schedule(node.plain()) else _limits(node)


def _limits(node: Node) -> tuple[Limit, ...] | None:
    """Each limit is read on its own first, since it may have its own line."""
    parts: list[Any] = []
    if isinstance(node.value, list):
        parts = [item.read(read_limits) for item in node.value]
    elif isinstance(node.value, dict):
        parts = [item.read(partial(Limit.parse, name)) for name, item in node.value.items()]
    return None if None in parts else node.read(read_limits)


def _ids(nodes: Iterable[Node]) -> list[str]:
    """The ids of all rules, invalid ones too: a plan may name them."""
    ids = [node.value["id"].value for node in nodes if isinstance(node.value, dict) and "id" in node.value]
    return [id for id in ids if isinstance(id, str)]


def _tiers(node: Node, ids: Sequence[str], rules: Iterable[Rule]) -> dict[str, Tier]:
    tiers: dict[str, Tier] = {}
    for name, tier_node in node.entries().items():
        named = tier_node.entries()
        tier = {id: limits for id, limits_node in named.items() if (limits := _rule_limits(limits_node))}
        for id in named.keys() - {ANY_RULE, *ids}:
            named[id].wrong(f"plan {name!r} names an unknown rule {id!r}: {node.document.meant(id, ids)}")
        for rule in rules:
            id = rule.id if rule.id in named else ANY_RULE
            if id in tier:
                named[id].attempt(rule.check_limits, tier[id])
        tiers[name] = tier
    return tiers


def _check_names(node: Node, field: str, rule: Rule, tiers: Mapping[str, Tier]) -> None:
    """A cost by limit name must name limits that the rule has, itself or in some plan."""
    if rule.limits is None or not isinstance(getattr(rule, field), Mapping):
        return
    alternatives = [rule.limits, *(tier.get(rule.id, tier.get(ANY_RULE, ())) for tier in tiers.values())]
    names = list(dict.fromkeys(limit.name for limits in alternatives for limit in variants(limits)[0]))
    for name, amount in node.entries()[field].entries().items():
        if name not in names:
            amount.wrong(f"{field} names an unknown limit {name!r}: {node.document.meant(name, names)}")
