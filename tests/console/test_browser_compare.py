"""Two change sets compared in a real browser: from a branch, by keyboard, with hostile names and values."""

from typing import Any

import anyio
import pytest

from rebaser_client import Derive, RebaserClient, Set
from tests.support.browser import MARKUP, Seen, check_pages, in_each_look, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def shop(client: RebaserClient, ws: str) -> str:
    total = Derive("total", "sum", {"of": ["price"]})
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 2), Set("old", 1), total], wait="derived")
    await client.create_branch(ws, "draft")
    await client.enqueue_updates_with_reply(ws, "draft", [Set("price", 3), Set(MARKUP, MARKUP)], wait="derived")
    return f"/change-sets/{ws}"


async def test_a_branch_is_compared_with_its_target_and_with_another_one(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    await client.enqueue_updates_with_reply(ws, "third", [Set("old", 1)])
    seen = Seen()
    async with opened(running, seen=seen) as page:
        await page.goto(f"{console.url}{shop}/draft")
        await page.get_by_role("link", name="compare with main").press("Enter")
        await page.wait_for_selector("tr:has-text('total'):has-text('result')")
        assert await page.locator("tbody tr").count() == 3
        assert await page.locator("main img").count() == 0
        await page.get_by_role("link", name="Only the result 1").press("Enter")
        await page.wait_for_selector("tbody tr:has-text('price')", state="detached")
        await page.get_by_role("link", name="swap").press("Enter")
        await page.wait_for_selector("th:nth-child(3):has-text('In draft')")
        assert await page.get_by_label("Compared with").input_value() == "main"
        await page.get_by_label("Compared with").fill("third")
        await page.get_by_label("Compared with").press("Enter")
        await page.get_by_role("link", name="Only in draft 3").wait_for()
        await page.wait_for_selector("tbody tr:has-text('old')", state="detached")
        await page.get_by_role("link", name=MARKUP).click()
        await page.wait_for_url(f"**{shop}/draft/value?id=*")
        await page.go_back()
        await page.get_by_label("Compared with").fill("nowhere")
        await page.get_by_label("Compared with").press("Enter")
        await page.wait_for_selector("text=There is no such change set")
    assert [one for one in seen.complaints if "404" not in one] == []


async def test_nothing_stands_under_the_name_of_another_change_set(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    await client.enqueue_updates_with_reply(ws, "third", [Set("old", 1)])
    release = anyio.Event()

    async def hold(route: Any) -> None:
        await release.wait()
        await route.continue_()

    async with opened(running) as page:
        await page.route("**/api/v1/compare?*b=third*", hold)
        await page.goto(f"{console.url}/compare?workspace={ws}&a=main&b=draft")
        await page.wait_for_selector("tbody tr")
        await page.get_by_label("Compared with").fill("third")
        await page.get_by_label("Compared with").press("Enter")
        await page.wait_for_selector(".loading")
        assert await page.locator("tbody tr").count() == 0
        release.set()
        await page.wait_for_selector("th:has-text('In third')")


@in_each_look
async def test_the_page_opens_without_a_complaint(
    running: Any, console: WebConsole, ws: str, shop: str, theme: str, size: str
) -> None:
    address = f"{console.url}/compare"
    pages = [(address, "form"), (f"{address}?workspace={ws}&a=main&b=draft", "tbody tr")]
    await check_pages(running, pages, theme=theme, size=size)
