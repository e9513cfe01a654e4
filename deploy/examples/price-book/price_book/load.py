"""`load-prices`: loads a CSV file with the columns product, cost and margin into a change set."""

import argparse
import csv
import os
import sys
from collections.abc import Iterable

from rebaser_client import BlockingRebaserClient, RebaserError, Update

from price_book import book

URL = os.environ.get("REBASER_NATS_URL", "nats://127.0.0.1:4222")


def updates(lines: Iterable[str]) -> list[Update]:
    """Return the updates for the lines of a CSV file. Raises `ValueError` if a line is invalid."""
    rows = csv.DictReader(lines)
    if set(rows.fieldnames or ()) != {"product", "cost", "margin"}:
        raise ValueError(f"the columns must be product, cost and margin, but they are {rows.fieldnames}")
    found = book.frame()
    for row in rows:
        try:
            found += book.product(row["product"], float(row["cost"]), float(row["margin"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {rows.line_num}: {error}") from None
    return found


def load(client: BlockingRebaserClient, workspace: str, change_set: str, lines: Iterable[str]) -> int:
    """Send all lines as one request, wait for the prices, and return their number. All lines are applied, or none."""
    client.enqueue_updates_with_reply(workspace, change_set, updates(lines), wait="derived", message="load-prices")
    return len(client.values(workspace, change_set, book.PRICES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspace")
    parser.add_argument("change_set")
    parser.add_argument("file")
    args = parser.parse_args()
    try:
        with open(args.file, newline="", encoding="utf-8") as lines, BlockingRebaserClient.connect(URL) as client:
            count = load(client, args.workspace, args.change_set, lines)
    except (OSError, ValueError, RebaserError) as error:
        sys.exit(f"load-prices: {error}")
    print(f"{args.workspace}/{args.change_set} has {count} prices")
