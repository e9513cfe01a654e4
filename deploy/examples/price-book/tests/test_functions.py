"""The functions of the plug-in, called as they are: no server is needed."""

import pytest
from rebaser.dvu.functions import FunctionError

from price_book.functions import list_price, tier_prices


@pytest.mark.parametrize(
    ("cost", "margin", "price"), [(3.10, 0.40, 5.95), (5.20, 0.45, 9.95), (0.95, 0, 0.95), (1, 0, 1.95)]
)
def test_a_price_ends_in_95_and_leaves_the_margin(cost: float, margin: float, price: float) -> None:
    assert list_price({"cost": cost, "margin": margin}, {}) == price


def test_an_impossible_margin_is_an_error() -> None:
    with pytest.raises(FunctionError, match="the margin must be at least 0 and less than 1"):
        list_price({"cost": 1, "margin": 1.2}, {})


def test_large_quantities_are_cheaper() -> None:
    assert tier_prices.call is not None
    tiers = tier_prices.call({"price": 9.95, "discounts": {"10": 0.05, "100": 0.12}}, {})
    assert tiers == {"1": 9.95, "10": 9.45, "100": 8.76}
