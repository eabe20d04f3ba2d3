"""The cost of a request, checked before the limiter is called: a cost that cannot be charged is not a free pass."""

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
    """The cost of a call under a rule. BadCost if it cannot be charged."""
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
    """Amounts by limit name. Limits that do not exist are left out, but one must exist."""
    by_name = cost if isinstance(cost, Mapping) else {limit.name: cost for limit in limits}
    counted = [limit for limit in limits if limit.name in by_name]
    if not counted:
        has = ", ".join(limit.name for limit in limits)
        names = ", ".join(by_name)
        raise LimitNotFound(f"the cost of rule {rule_id!r} names {names}, but its limits are {has}", names)
    return {limit.name: _whole(limit, by_name[limit.name]) for limit in counted}


def _whole(limit: Limit, amount: Amount) -> Amount:
    """Slots cannot be divided."""
    if limit.is_concurrent and amount % 1:
        raise BadCost(f"its cost is not a whole number of slots {limit.name!r}")
    return amount


def _check(cost: Any) -> None:
    if not isinstance(cost, Mapping):
        _check_amount(cost)
        return
    if not cost:
        raise BadCost("its cost names no limit")
    for name, amount in cost.items():
        if not isinstance(name, str):
            raise BadCost("its cost has names of limits that are not strings")
        _check_amount(amount)


def _check_amount(amount: Any) -> None:
    """Only numbers are shown: a function may return any string, and it may be a secret."""
    why = _why_not(amount)
    if why:
        raise BadCost(f"its cost {why}")


def _why_not(amount: Any) -> str | None:
    if isinstance(amount, bool) or not isinstance(amount, (int, float, Decimal, Fraction)):
        return f"is not a number, but of type {type(amount).__name__}"
    if not (isinstance(amount, (int, Fraction)) or Decimal(amount).is_finite()):
        return f"is {amount}, which is not an amount"
    if amount < 0:
        return f"is negative: {_shown(amount)}"
    if amount > MAX_AMOUNT:
        return f"is more than {MAX_AMOUNT:,}"
    return None if _is_in_thousandths(amount) else f"is not a multiple of 0.001: {_shown(amount)}"


def _is_in_thousandths(amount: int | float | Decimal | Fraction) -> bool:
    if isinstance(amount, Decimal) and amount.adjusted() < -3:
        return not amount  # as a fraction, 1e-999999999 would take all memory
    exact = Fraction(str(amount)) if isinstance(amount, float) else Fraction(amount)
    return (exact * MILLI).denominator == 1


def _shown(amount: int | float | Decimal | Fraction) -> str:
    if isinstance(amount, int) and abs(amount) >= 10**_SHOWN:
        return "a very long number"  # Python refuses to print it
    text = str(amount)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
