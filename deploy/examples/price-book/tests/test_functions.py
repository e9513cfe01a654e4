"""The functions of the plug-in, called as they are and by the code of Spark's workers: no server is needed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rebaser.dvu.functions import FunctionError
from rebaser.testing import check_function, strategies
from rebaser_client import State

from price_book.functions import list_price, tier_prices

COSTS = st.floats(0.01, 100_000).map(lambda cost: round(cost, 2))
MARGINS = st.integers(0, 90).map(lambda percent: percent / 100)


@pytest.mark.parametrize(
    ("cost", "margin", "price"), [(3.10, 0.40, 5.95), (5.20, 0.45, 9.95), (0.95, 0, 0.95), (1, 0, 1.95)]
)
def test_a_price_ends_in_95_and_leaves_the_margin(cost: float, margin: float, price: float) -> None:
    assert list_price({"cost": cost, "margin": margin}, {}) == price


@settings(deadline=None)  # a busy machine is not a defect
@given(st.lists(st.fixed_dictionaries({"cost": COSTS, "margin": MARGINS}), min_size=1, max_size=5))
def test_many_prices_are_computed_as_single_ones(cases: list[dict[str, float]]) -> None:
    for case, price in zip(cases, check_function(list_price, cases), strict=True):
        assert isinstance(price.value, float)
        assert price.value * (1 - case["margin"]) >= case["cost"] - 1e-6


@settings(deadline=None)
@given(cost=strategies.values(), margin=strategies.values())
def test_any_other_input_is_an_error_that_says_why(cost: object, margin: object) -> None:
    [price] = check_function(list_price, [{"cost": cost, "margin": margin}])
    if price.state is State.ERROR:
        assert price.error is not None
        assert price.error.message


def test_an_impossible_margin_is_an_error() -> None:
    with pytest.raises(FunctionError, match="the margin must be at least 0 and less than 1"):
        list_price({"cost": 1, "margin": 1.2}, {})


def test_large_quantities_are_cheaper() -> None:
    [tiers] = check_function(tier_prices, [{"price": 9.95, "discounts": {"10": 0.05, "100": 0.12}}])
    assert tiers.value == {"1": 9.95, "10": 9.45, "100": 8.76}
