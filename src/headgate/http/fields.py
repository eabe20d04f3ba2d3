"""The fields of a rule: their types and checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from ..core.errors import ValidationError
from ..core.limit import Limit
from ..core.names import check_limit_name, check_resource
from ..core.units import MAX_AMOUNT, tokens_to_milli

Amount: TypeAlias = "int | float"
Cost: TypeAlias = "Amount | Mapping[str, Amount] | Callable[[Any], Any]"
BadCostChoice: TypeAlias = "Literal['reject'] | Amount | Mapping[str, Amount]"
REJECT: Literal["reject"] = "reject"
Per = Literal["caller", "user", "organisation", "api_key", "address", "everyone"]

_METHOD = re.compile(r"[A-Z][A-Z0-9_-]*")


def check_id(id: str) -> str:
    try:
        return check_resource(id)
    except ValidationError as error:
        raise ValidationError(str(error).replace("resource", "rule id", 1)) from None


def read_method(method: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The methods of a rule, in capitals; None for all of them."""
    if method is None or method == "*":
        return None
    parts = [method] if isinstance(method, str) else method
    readable = isinstance(parts, Sequence) and all(isinstance(part, str) for part in parts)
    methods = sorted({name.strip().upper() for name in "|".join(parts).split("|")}) if readable else [""]
    if not all(_METHOD.fullmatch(name) for name in methods):
        raise ValidationError(f"method must be like 'GET', 'GET|POST', ['GET', 'POST'] or '*', not {method!r}")
    return tuple(methods)


def check_priority(priority: int) -> int:
    if type(priority) is not int:
        raise ValidationError(f"priority must be a whole number, not {priority!r}")
    return priority


def check_flag(what: str, flag: bool) -> bool:
    if not isinstance(flag, bool):
        raise ValidationError(f"{what} must be true or false, not {flag!r}")
    return flag


def check_per(per: Per) -> Per:
    if per not in get_args(Per):
        raise ValidationError(f"per must be one of {', '.join(get_args(Per))}, not {per!r}")
    return per


def check_cost(cost: Cost) -> Cost:
    return cost if callable(cost) else _check_fixed("cost", cost)


def check_bad_cost(choice: BadCostChoice) -> BadCostChoice:
    """What happens to a request whose cost cannot be charged."""
    if isinstance(choice, str) and choice == REJECT:
        return choice
    if isinstance(choice, Mapping) or (isinstance(choice, (int, float)) and not isinstance(choice, bool)):
        return _check_fixed("bad_cost", choice)
    raise ValidationError(f"bad_cost must be 'reject', or what to charge instead, like 1, not {choice!r}")


def _check_fixed(what: str, cost: Amount | Mapping[str, Amount]) -> Amount | Mapping[str, Amount]:
    if not isinstance(cost, Mapping):
        _check_amount(cost, what)
        return cost
    if not cost:
        raise ValidationError(f"{what} must name a limit, like {{'tokens': 5}}, not {{}}")
    for name, amount in cost.items():
        _check_amount(amount, f"{what} of limit {check_limit_name(name)!r}")
    return MappingProxyType(dict(cost))


def _check_amount(amount: Any, what: str) -> None:
    """Zero is an amount: it passes unless the limit is in debt."""
    if isinstance(amount, bool) or amount != 0:
        tokens_to_milli(amount, what, most=MAX_AMOUNT)


def check_affordable(id: str, cost: Cost | BadCostChoice, limits: Sequence[Limit]) -> None:
    """A cost for other limits would count nothing, and a cost above the capacity would refuse every request."""
    if callable(cost) or cost == REJECT:
        return
    amounts: Mapping[str, Any] = cost if isinstance(cost, Mapping) else {limit.name: cost for limit in limits}
    counted = [limit for limit in limits if limit.name in amounts]
    if not counted:
        has = ", ".join(limit.name for limit in limits)
        raise ValidationError(
            f"rule {id!r} would limit nothing: its cost names {', '.join(amounts)}, its limits are {has}"
        )
    for limit in counted:
        _check_amount_fits(id, amounts[limit.name], limit)


def _check_amount_fits(id: str, amount: Amount, limit: Limit) -> None:
    if amount > limit.capacity:
        most = f"limit {limit.name!r} never holds more than {limit.capacity}"
        raise ValidationError(f"rule {id!r} would refuse every request: its cost is {amount}, and {most}")
    if limit.is_concurrent and amount != int(amount):
        raise ValidationError(f"cost of rule {id!r} must be a whole number of slots {limit.name!r}, not {amount}")
