"""Defines the values of the price book.

| id | value |
|---|---|
| `discounts` | the discount by quantity, such as `{"10": 0.05}` |
| `product/NAME/cost`, `product/NAME/margin` | set from prices.csv |
| `product/NAME/price` | derived: `price_book.list_price` |
| `product/NAME/tiers` | derived: `price_book.tier_prices` |
| `mean` | derived: the mean of all prices, and of those that are added later |
"""

from rebaser_client import Derive, Match, Set, Update

PRICES = "product/*/price"


def frame() -> list[Update]:
    """Return the updates that define the values of the whole book."""
    return [Set("discounts", {"10": 0.05, "100": 0.12}), Derive("mean", "mean", {"values": Match(PRICES)})]


def product(name: str, cost: float, margin: float) -> list[Update]:
    """Return the updates that define one product, or define it anew."""
    at = f"product/{name}"
    return [
        Set(f"{at}/cost", cost),
        Set(f"{at}/margin", margin),
        Derive(f"{at}/price", "price_book.list_price", {"cost": f"{at}/cost", "margin": f"{at}/margin"}),
        Derive(f"{at}/tiers", "price_book.tier_prices", {"price": f"{at}/price", "discounts": "discounts"}),
    ]
