"""The price book on a running installation. `rebaser_sync` is a fixture of Rebaser: a client with a workspace of its
own."""

import pytest
from rebaser.testing import BlockingWorkspaceClient
from rebaser_client import Set, State

from price_book.load import load, updates
from price_book.review import PriceChange, review

LINES = ["product,cost,margin\n", "assam,3.10,0.40\n", "sencha,4.40,0.40\n"]


@pytest.fixture
def client(rebaser_sync: BlockingWorkspaceClient) -> BlockingWorkspaceClient:
    """A client whose workspace has the prices of LINES in the change set `main`."""
    assert load(rebaser_sync, rebaser_sync.workspace, "main", LINES) == 2
    return rebaser_sync


def test_prices_follow_costs(client: BlockingWorkspaceClient) -> None:
    values = client.values(client.workspace, "main")
    assert values["product/assam/price"].value == 5.95
    assert values["product/assam/tiers"].value == {"1": 5.95, "10": 5.65, "100": 5.24}
    assert values["mean"].value == pytest.approx(6.95)

    client.enqueue_updates_with_reply(client.workspace, "main", [Set("product/assam/cost", 4.2)], wait="derived")
    assert client.values(client.workspace, "main")["product/assam/price"].value == 7.95


def test_a_wrong_margin_is_shown_where_it_is(client: BlockingWorkspaceClient) -> None:
    client.enqueue_updates_with_reply(client.workspace, "main", [Set("product/assam/margin", 40)], wait="derived")
    values = client.values(client.workspace, "main")
    assert values["product/assam/price"].state is State.ERROR
    assert values["product/sencha/price"].state is State.OK


def test_a_branch_is_reviewed_and_applied(client: BlockingWorkspaceClient) -> None:
    client.create_branch(client.workspace, "autumn")
    edit = [Set("product/sencha/cost", 4.9)]
    client.enqueue_updates_with_reply(client.workspace, "autumn", edit, wait="derived")
    found = review(client, client.workspace, "autumn")
    assert (found.changes, found.errors) == ([PriceChange("sencha", 7.95, 8.95)], {})
    assert found.too_large(10) == found.changes
    assert found.too_large(20) == []

    client.apply(client.workspace, "autumn", check=True)
    client.settle("main")
    assert client.values(client.workspace, "main")["product/sencha/price"].value == 8.95


def test_a_review_shows_new_errors(client: BlockingWorkspaceClient) -> None:
    client.create_branch(client.workspace, "wrong")
    edit = [Set("product/sencha/margin", 2)]
    client.enqueue_updates_with_reply(client.workspace, "wrong", edit, wait="derived")
    found = review(client, client.workspace, "wrong")
    assert found.changes == [PriceChange("sencha", 7.95, None)]
    assert "less than 1, but it is 2" in found.errors["product/sencha/price"]


@pytest.mark.parametrize(
    ("lines", "told"), [(["product,price\n"], "the columns must be"), ([LINES[0], "assam,free,0.4\n"], "line 2: ")]
)
def test_a_wrong_file_is_refused(lines: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        updates(lines)
