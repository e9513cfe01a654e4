"""The plug-in: functions that compute prices. pyproject.toml declares them as entry points of `rebaser.functions`.

Functions must be pure: the same inputs and params always give the same result.
"""

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from typing import Any

from rebaser.dvu.functions import Function, FunctionError

ENDING = Decimal("0.95")
CENT = Decimal("0.01")


def list_price(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> float:
    """Return the smallest price that ends in .95 and leaves at least the input `margin` above the input `cost`."""
    cost, margin = _number("cost", inputs), _number("margin", inputs)
    if not 0 <= margin < 1:
        raise FunctionError(f"the margin must be at least 0 and less than 1, but it is {margin}")
    least = cost / (1 - margin)
    return float((least - ENDING).to_integral_value(ROUND_CEILING) + ENDING)


def _tier_prices(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, float]:
    """Return the price of one piece by quantity. The input `discounts` has the discount of each quantity."""
    price = _number("price", inputs)
    discounts = {"1": 0, **(inputs.get("discounts") or {})}
    return {
        quantity: float((price * (1 - Decimal(str(discount)))).quantize(CENT, ROUND_HALF_UP))
        for quantity, discount in discounts.items()
    }


# A `Function` also says which inputs and params it accepts; `rebaser functions` shows them.
tier_prices = Function(
    name="price_book.tier_prices",
    call=_tier_prices,
    doc="Return the price of one piece by quantity.",
    inputs=("price", "discounts"),
    params=(),
)


def _number(name: str, inputs: Mapping[str, Any]) -> Decimal:
    value = inputs.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FunctionError(f"{name} must be a number, but it is {value!r}")
    return Decimal(str(value))
