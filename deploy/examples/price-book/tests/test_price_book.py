"""The price book on a running installation. `rebaser_server` and `rebaser_workspace` are fixtures of Rebaser."""

import pytest
from rebaser.testing import LocalRebaser
from rebaser_client import BlockingRebaserClient, Set, State

from price_book.load import load, updates
from price_book.review import PriceChange, review

LINES = ["product,cost,margin\n", "assam,3.10,0.40\n", "sencha,4.40,0.40\n"]


@pytest.fixture
def client(rebaser_server: LocalRebaser, rebaser_workspace: str) -> BlockingRebaserClient:
    """A client of an installation that has the prices of LINES in the change set `main`."""
    assert load(rebaser_server.client, rebaser_workspace, "main", LINES) == 2
    return rebaser_server.client


def test_prices_follow_costs(client: BlockingRebaserClient, rebaser_workspace: str) -> None:
    values = client.values(rebaser_workspace, "main")
    assert values["product/assam/price"].value == 5.95
    assert values["product/assam/tiers"].value == {"1": 5.95, "10": 5.65, "100": 5.24}
    assert values["mean"].value == pytest.approx(6.95)

    client.enqueue_updates_with_reply(rebaser_workspace, "main", [Set("product/assam/cost", 4.2)], wait="derived")
    assert client.values(rebaser_workspace, "main")["product/assam/price"].value == 7.95


def test_a_wrong_margin_is_shown_where_it_is(client: BlockingRebaserClient, rebaser_workspace: str) -> None:
    client.enqueue_updates_with_reply(rebaser_workspace, "main", [Set("product/assam/margin", 40)], wait="derived")
    values = client.values(rebaser_workspace, "main")
    assert values["product/assam/price"].state is State.ERROR
    assert values["product/sencha/price"].state is State.OK


def test_a_branch_is_reviewed_and_applied(
    client: BlockingRebaserClient, rebaser_server: LocalRebaser, rebaser_workspace: str
) -> None:
    client.create_branch(rebaser_workspace, "autumn")
    edit = [Set("product/sencha/cost", 4.9)]
    client.enqueue_updates_with_reply(rebaser_workspace, "autumn", edit, wait="derived")
    found = review(client, rebaser_workspace, "autumn")
    assert (found.changes, found.errors) == ([PriceChange("sencha", 7.95, 8.95)], {})
    assert found.too_large(10) == found.changes
    assert found.too_large(20) == []

    client.apply(rebaser_workspace, "autumn", check=True)
    rebaser_server.settle(rebaser_workspace, "main")
    assert client.values(rebaser_workspace, "main")["product/sencha/price"].value == 8.95


def test_a_review_shows_new_errors(client: BlockingRebaserClient, rebaser_workspace: str) -> None:
    client.create_branch(rebaser_workspace, "wrong")
    edit = [Set("product/sencha/margin", 2)]
    client.enqueue_updates_with_reply(rebaser_workspace, "wrong", edit, wait="derived")
    found = review(client, rebaser_workspace, "wrong")
    assert found.changes == [PriceChange("sencha", 7.95, None)]
    assert "less than 1, but it is 2" in found.errors["product/sencha/price"]


@pytest.mark.parametrize(
    ("lines", "told"), [(["product,price\n"], "the columns must be"), ([LINES[0], "assam,free,0.4\n"], "line 2: ")]
)
def test_a_wrong_file_is_refused(lines: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        updates(lines)
