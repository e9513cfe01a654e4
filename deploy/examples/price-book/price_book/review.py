"""`review-prices`: shows the prices that a branch would change, and fails if one of them needs a second look."""

import argparse
import sys
from dataclasses import dataclass

from rebaser_client import BlockingRebaserClient, RebaserError

from price_book import book
from price_book.load import URL


@dataclass(frozen=True)
class PriceChange:
    """A price before and after the branch; None means that there is no price, or that it cannot be computed."""

    product: str
    before: float | None
    after: float | None

    @property
    def rise(self) -> float | None:
        """Return the rise in percent."""
        return (self.after / self.before - 1) * 100 if self.before and self.after else None


@dataclass(frozen=True)
class Review:
    changes: list[PriceChange]
    errors: dict[str, str]  # messages by value id: errors that only the branch has

    def too_large(self, limit: float) -> list[PriceChange]:
        """Return the changes of more than `limit` percent."""
        return [change for change in self.changes if change.rise is not None and abs(change.rise) > limit]


def review(client: BlockingRebaserClient, workspace: str, branch: str) -> Review:
    """Wait for the derived values of the branch, and compare its prices with those of its target."""
    errors = {id_: fault.message for id_, fault in client.new_errors(workspace, branch).items()}
    info = client.branch(workspace, branch)
    assert info is not None and info.target is not None  # otherwise, `new_errors` raises
    before = _prices(client, workspace, info.target)
    after = _prices(client, workspace, branch)
    ids = sorted(before.keys() | after.keys())
    changes = [PriceChange(id_.split("/")[1], before.get(id_), after.get(id_)) for id_ in ids]
    return Review([change for change in changes if change.before != change.after], errors)


def _prices(client: BlockingRebaserClient, workspace: str, change_set: str) -> dict[str, float]:
    values = client.values(workspace, change_set, book.PRICES)
    return {id_: value.value for id_, value in values.items() if isinstance(value.value, int | float)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspace")
    parser.add_argument("branch")
    parser.add_argument("--limit", type=float, default=20, help="largest change in percent (default: %(default)s)")
    args = parser.parse_args()
    try:
        with BlockingRebaserClient.connect(URL) as client:
            found = review(client, args.workspace, args.branch)
    except (RebaserError, TimeoutError) as error:
        sys.exit(f"review-prices: {error}")
    for change in found.changes:
        rise = "" if change.rise is None else f"{change.rise:+.1f}%"
        print(f"{change.product:12}{_shown(change.before)}{_shown(change.after)}{rise:>9}".rstrip())
    for id_, message in found.errors.items():
        print(f"{id_}: {message}")
    if found.errors or found.too_large(args.limit):
        sys.exit(f"review-prices: there are errors, or changes of more than {args.limit:g}%")


def _shown(price: float | None) -> str:
    return f"{'-':>9}" if price is None else f"{price:9.2f}"
