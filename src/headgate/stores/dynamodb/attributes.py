"""DynamoDB's spelling of values, as far as the table has them. JSON that users bring is kept as text."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from .exchange import Attributes, Item


def attribute(value: str | int | Decimal | bool) -> Attributes:
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    return {"N": str(value) if isinstance(value, int) else f"{value:f}"}


def item_of(values: Mapping[str, str | int | Decimal | bool | None]) -> dict[str, Attributes]:
    """What is None is left out."""
    return {name: attribute(value) for name, value in values.items() if value is not None}


def value_of(found: Attributes) -> Any:
    ((kind, value),) = found.items()
    if kind == "N":
        number = Decimal(value)
        return int(number) if number == number.to_integral_value() else number
    return value


def values_of(item: Item) -> dict[str, Any]:
    return {name: value_of(found) for name, found in item.items()}
