"""What a request costs, checked before anything is asked: a cost that cannot be charged is never a free pass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ..core.errors import LimitNotFound
from ..core.limit import Limit
from ..core.units import MAX_AMOUNT, MILLI
from ..plan import Plan
from .call import HttpCall
from .failures import BadCost
from .fields import Amount, Cost
from .steps import Await

_SHOWN = 40


def cost_plan(call: HttpCall, cost: Cost) -> Plan[Any]:
    """What a rule's cost is for a call, checked. BadCost if it cannot be charged."""
    if callable(cost):
        try:
            cost = cost(call)
            if inspect.isawaitable(cost):
                cost = yield from Await(cost)
        except GeneratorExit:
            raise
        except Exception as error:
            log = f"the cost function raised {type(error).__name__}: {error}"
            raise BadCost("its cost could not be worked out", log, "cost_raised") from error
        _check(cost)
    return cost


def amounts(rule_id: str, cost: Any, limits: Sequence[Limit]) -> dict[str, Amount]:
    """By limit name. Of limits that are not there it counts nothing, but there must be one that is."""
    by_name = cost if isinstance(cost, Mapping) else {limit.name: cost for limit in limits}
    counted = [limit for limit in limits if limit.name in by_name]
    if not counted:
        has = ", ".join(limit.name for limit in limits)
        names = ", ".join(by_name)
        raise LimitNotFound(f"the cost of rule {rule_id!r} is of {names}, and its limits are {has}", names)
    return {limit.name: _whole(limit, by_name[limit.name]) for limit in counted}


def _whole(limit: Limit, amount: Amount) -> Amount:
    """Slots are not divided."""
    if limit.is_concurrent and amount % 1:
        raise BadCost(f"its cost is no whole number of slots {limit.name!r}")
    return amount


def _check(cost: Any) -> None:
    if not isinstance(cost, Mapping):
        _check_amount(cost)
        return
    if not cost:
        raise BadCost("its cost names no limit")
    for name, amount in cost.items():
        if not isinstance(name, str):
            raise BadCost("its cost is of limits whose names are no texts")
        _check_amount(amount)


def _check_amount(amount: Any) -> None:
    """No value is shown but a number: a function may return any text, and it may be secret."""
    why = _why_not(amount)
    if why:
        raise BadCost(f"its cost {why}")


def _why_not(amount: Any) -> str | None:
    if isinstance(amount, bool) or not isinstance(amount, (int, float, Decimal, Fraction)):
        return f"is no number, but of type {type(amount).__name__}"
    if not (isinstance(amount, (int, Fraction)) or Decimal(amount).is_finite()):
        return f"is {amount}, which is no amount"
    if amount < 0:
        return f"is negative: {_shown(amount)}"
    if amount > MAX_AMOUNT:
        return f"is more than {MAX_AMOUNT:,}"
    return None if _is_in_thousandths(amount) else f"is no multiple of 0.001: {_shown(amount)}"


def _is_in_thousandths(amount: int | float | Decimal | Fraction) -> bool:
    if isinstance(amount, Decimal) and amount.adjusted() < -3:
        return not amount  # as a fraction, 1e-999999999 would take all memory
    exact = Fraction(str(amount)) if isinstance(amount, float) else Fraction(amount)
    return (exact * MILLI).denominator == 1


def _shown(amount: int | float | Decimal | Fraction) -> str:
    if isinstance(amount, int) and abs(amount) >= 10**_SHOWN:
        return "a very long number"  # which Python does not even write
    text = str(amount)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
