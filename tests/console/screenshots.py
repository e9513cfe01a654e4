"""Writes a picture of each page of the console, in both themes and three sizes, for a person to look at.

`python -m tests.console.screenshots FOLDER [PAGE…]`
"""

import logging
import sys
from functools import partial
from pathlib import Path

import anyio
import structlog

from rebaser.cli.commands.observing.playground import make_playground
from rebaser.console.access.rules import TokenAccess
from rebaser.testing import local_rebaser
from rebaser_client import Derive, Match, RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.browser import SIZES, browser, opened
from tests.support.troubled_updates import troubled, troubled_updates
from tests.support.web_console import web_console

BASE = "/change-sets/shop/main"
PAGES = {
    "overview": "/",
    "change-sets": "/change-sets",
    "values": BASE,
    "tree": f"{BASE}?prefix=cart/",
    "errors": f"{BASE}?state=error",
    "value": f"{BASE}/value?id=invoice/total",
    "value-ok": f"{BASE}/value?id=cart/3/gross",
    "value-branches": f"{BASE}/value?id=cart/1/price",
    "neighbours": f"{BASE}/neighbours?id=vat&side=dependents&limit=25",
    "by-function": f"{BASE}?function=cel&state=error",
    "queue": f"{BASE}/queue",
    "graph": f"{BASE}/graph?id=cart/total",
    "graph-expanded": f"{BASE}/graph?id=invoice/total&depth=1&expand=cart/total",
    "graph-error": f"{BASE}/graph?id=invoice/total",
    "commits": f"{BASE}/commits",
    "commit": f"{BASE}/commit?at=1",
    "take-back": f"{BASE}/commit?at=12",
    "explain": f"{BASE}/explain",
    "branches": "/branches",
    "changes": "/change-sets/shop/cheaper/changes?derived=yes",
    "apply": "/change-sets/shop/ready/changes",
    "conflicts": "/change-sets/shop/dearer/conflicts",
    "compare": "/compare?workspace=shop&a=main&b=dearer",
    "compare-choose": "/compare?workspace=shop&a=main",
    "dvu": "/dvu",
    "updates": f"{BASE}/updates",
    "updates-failing": "/change-sets/stock/broken/updates",
    "dead-letters": "/dead-letters",
    "letter": "/dead-letters/letter?sequence=1",
    "playground": "/playground",
}
SLOW = {"overview", "dvu"}  # parts of them come later


async def fill(client: RebaserClient, troubles: tuple[str, ...] = ("fail", "hang")) -> None:
    """Create a price book with a broken input, and three branches: one in conflict, one behind, one closed. `troubles`
    are those of two change sets, within `troubled_updates`."""
    edits: list[Set | Derive] = [Set("currency", "EUR"), Set("vat", 0.2), Set("note", {"a": [1, 2, {"b": "text"}]})]
    for number in range(40):
        cart = f"cart/{number}"
        edits += [
            Set(f"{cart}/price", 9.5 + number),
            Set(f"{cart}/name", f"Tea no. {number}"),
            Derive(f"{cart}/gross", "cel", {"price": f"{cart}/price", "vat": "vat"}, {"expr": "price * (1.0 + vat)"}),
        ]
    edits.append(Derive("cart/total", "sum", {"values": [Match("cart/*/gross")]}))
    edits.append(Derive("invoice/total", "sum", {"values": ["cart/total", "invoice/fee"]}))
    edits.append(Derive("invoice/reminder", "sum", {"values": ["invoice/total"]}))
    say = {"author": "ann", "message": "the price book of autumn"}
    await client.enqueue_updates_with_reply("shop", "main", edits, wait="derived", **say)  # type: ignore[arg-type]
    for name in ("dearer", "cheaper", "old-prices"):
        await client.create_branch("shop", name)
        await client.enqueue_updates_with_reply(
            "shop", name, [Set("cart/1/price", len(name)), Set(f"only/{name}", 1)], wait="derived", author="bob"
        )
    await client.enqueue_updates_with_reply("shop", "main", [Set("cart/1/price", 77.0)], wait="derived", author="ann")
    await client.rebase("shop", "dearer")
    await client.close_change_set("shop", "old-prices")
    await client.create_branch("shop", "ready")
    await client.enqueue_updates_with_reply("shop", "ready", [Set("vat", 0.25)], wait="derived", author="eve")
    for number in range(24):
        await client.enqueue_updates_with_reply("stock", f"warehouse-{number}", [Set("count", number)])
    for name, trouble in zip(("broken", "slow"), troubles, strict=False):
        await client.enqueue_updates_with_reply("stock", name, troubled(trouble))


async def bury(url: str) -> None:
    """Send requests that no server can read."""
    async with Connection.connect(url) as connection:
        for number in range(4):
            subject = Subjects("").requests(ChangeSetKey("shop", "main"))
            await JetStream(connection).publish(subject, b"hello", {"X-Sender": "a test", "Nats-Msg-Id": f"n{number}"})


async def main(folder: Path, names: list[str]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with troubled_updates(), local_rebaser(quiescent_period=2) as installation:
        async with RebaserClient.connect(installation.url) as client, browser() as running:
            await bury(installation.url)
            await fill(client)
            playing = web_console(installation.url, actions=True, playground=make_playground())
            async with playing as console, web_console(installation.url, access=TokenAccess("a token")) as locked:
                addresses = {name: console.url + path for name, path in PAGES.items()} | {
                    "login": f"{locked.url}/login"
                }
                for theme in ("light", "dark"):
                    for size in SIZES:
                        async with opened(running, theme=theme, size=size) as page:
                            for name in names or addresses:
                                await page.goto(addresses[name])
                                await page.wait_for_selector("h1")
                                await page.wait_for_selector(".loading", state="detached")
                                await page.wait_for_timeout(2500 if name in SLOW else 300)
                                await page.screenshot(path=folder / f"{name}-{size}-{theme}.png")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    anyio.run(partial(main, target, sys.argv[2:]))
