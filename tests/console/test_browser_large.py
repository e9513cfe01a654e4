"""Ten thousand change sets, and a million values, in a real browser; the short form has fewer of both."""

from typing import Any

import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser.testing import LocalRebaser
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.benchmarks.overview import fill
from tests.support.browser import Seen, check_page, opened
from tests.support.web_console import WebConsole, web_console

pytestmark = [pytest.mark.anyio]

BATCH = 20_000  # values of a request
ROWS = "[data-rows] tr"
# A row of the table of change sets by its link, or of a table of values by its id.
FIRST = f"{ROWS}:first-child .row-link"
IS_PAST = "([row, text]) => document.querySelector(row).innerText > text"


@pytest.mark.parametrize(
    ("count", "theme", "size"),
    [
        (1200, "dark", "phone"),
        pytest.param(10_000, "light", "phone", marks=pytest.mark.long),
        pytest.param(10_000, "dark", "wall", marks=pytest.mark.long),
    ],
)
async def test_many_change_sets_are_searched_sorted_paged_and_opened(
    running: Any, own_nats: EmbeddedNats, count: int, theme: str, size: str
) -> None:
    async with Connection.connect(own_nats.url) as connection:
        js = JetStream(connection, timeout=30)
        await ensure_topology(js, Subjects(), TopologyOptions())
        await fill(js, Subjects(), count, 200)
    seen = Seen()
    async with (
        web_console(own_nats.url) as console,
        opened(running, theme=theme, size=size, seen=seen) as page,
    ):
        await page.goto(f"{console.url}/change-sets")
        await page.wait_for_selector(f"text={count:,} in all")
        assert await page.locator(ROWS).count() == 100
        await check_page(page)
        await page.keyboard.press("]")
        await page.wait_for_selector(f"text=101 to 200 of {count:,}")
        second = await page.locator(FIRST).inner_text()
        await page.keyboard.press("[")
        await page.wait_for_selector(f"text=1 to 100 of {count:,}")
        assert await page.locator(FIRST).inner_text() < second
        await page.get_by_role("link", name="State", exact=True).press("Enter")
        await page.wait_for_selector("th[aria-sort=descending]:has-text('State')")
        await page.wait_for_selector(f"{ROWS}:first-child:has-text('due')")
        await page.keyboard.press("/")
        await page.keyboard.type(f"cs-{count - 1}")
        await page.wait_for_selector(f"{ROWS}:only-child:has-text('cs-{count - 1}')")
        await page.keyboard.press("Escape")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/change-sets/bench/cs-{count - 1}")
        await page.wait_for_selector("tr:has-text('text')")
        await page.go_back()
        await page.wait_for_selector(f"{ROWS}:only-child:has-text('cs-{count - 1}')")
        assert await page.input_value("[data-search]") == f"cs-{count - 1}"
    assert seen.complaints == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("count", "theme", "size"),
    [
        (20_000, "light", "desk"),
        pytest.param(1_000_000, "dark", "desk", marks=pytest.mark.long),
        pytest.param(1_000_000, "light", "phone", marks=pytest.mark.long),
    ],
)
async def test_many_values_are_opened_searched_paged_and_explained(
    running: Any,
    installation: LocalRebaser,
    console: WebConsole,
    client: RebaserClient,
    ws: str,
    count: int,
    theme: str,
    size: str,
) -> None:
    carts = count // 10
    for first in range(0, carts, BATCH // 10):
        updates: list[Update] = []
        for cart in range(first, min(first + BATCH // 10, carts)):
            ids = [f"cart/{cart}/item/{item}" for item in range(9)]
            updates += [*(Set(id_, cart) for id_ in ids), Derive(f"cart/{cart}/total", "sum", {"of": ids})]
        await client.enqueue_updates_with_reply(ws, "main", updates, timeout=120)
    await client.enqueue_updates_with_reply(ws, "main", [Set("cart/0/item/0", 0)], wait="derived", timeout=300)
    seen, last = Seen(), carts - 1
    async with opened(running, theme=theme, size=size, seen=seen) as page:
        page.set_default_timeout(120_000)
        await page.goto(f"{console.url}/change-sets/{ws}/main")
        await page.wait_for_selector("tr:has-text('cart/')")
        await page.wait_for_selector(f"text={count:,} values")
        await page.locator(FIRST).click()
        await page.wait_for_url("**prefix=cart**")
        await page.wait_for_selector("a[rel=next]")
        assert await page.locator(ROWS).count() == 100
        await check_page(page)
        first_page = await page.locator(FIRST).inner_text()
        await page.keyboard.press("]")
        await page.wait_for_selector("a[rel=prev]")
        await page.wait_for_function(IS_PAST, arg=[FIRST, first_page])
        await page.keyboard.press("/")
        await page.keyboard.type(f"{last}/tot")
        await page.wait_for_selector(f"{ROWS}:has-text('{last}/total'):has-text('{last * 9}')")
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name=f"{last}/total", exact=True).click()
        await page.wait_for_selector(f".block.value:has-text('{last * 9}')")
        inputs = page.get_by_role("region", name="Inputs")
        assert await inputs.locator("tbody tr").count() == 9
        await page.get_by_role("link", name="Graph").click()
        await page.wait_for_selector(".node.here")
        assert await page.locator(".node").count() == 10
        await check_page(page)
    assert seen.complaints == []
