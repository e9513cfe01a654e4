"""The neighbourhood of a value in a real browser: drawn, walked by mouse and by keyboard."""

from typing import Any

import pytest

from rebaser_client import Derive, RebaserClient, Set, Update
from tests.support.browser import MARKUP, Seen, check_page, in_each_look, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def path(client: RebaserClient, ws: str) -> str:
    edits: list[Update] = [
        *(Set(f"item/{number}", number) for number in range(20)),
        Set(MARKUP, 1),
        Derive("total", "sum", {"of": [*(f"item/{number}" for number in range(20)), MARKUP, "gone"]}),
        Derive("report", "sum", {"of": ["total"]}),
    ]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived")
    return f"/change-sets/{ws}/main/graph"


@in_each_look
async def test_it_is_drawn_without_a_complaint(
    running: Any, console: WebConsole, path: str, theme: str, size: str
) -> None:
    seen = Seen()
    async with opened(running, theme=theme, size=size, seen=seen) as page:
        await page.goto(f"{console.url}{path}?id=total")
        await page.wait_for_selector(".node.here")
        assert await page.locator(".node").count() == 14, "itself, twelve inputs, and what uses it"
        assert "+10" in await page.locator(".node-more").first.text_content()
        await check_page(page)
        await page.goto(f"{console.url}{path}?id={MARKUP.replace('=', '%3D')}")
        await page.wait_for_selector(".node.here")
        await check_page(page)
    assert seen.complaints == []


async def test_it_is_walked_by_mouse_and_keyboard(running: Any, console: WebConsole, path: str) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}?id=report")
        await page.locator(".node:not(.here)").filter(has_text="total").click(modifiers=["Control"])
        await page.wait_for_url("**/graph?id=total")
        await page.wait_for_selector(".node.here:has-text('total')")
        await page.locator(".node.here").focus()
        await page.keyboard.press("ArrowRight")
        assert "report" in await page.evaluate("document.activeElement.textContent")
        await page.keyboard.press("c")
        await page.wait_for_selector(".node.here:has-text('report')")
        await page.locator(".node.here").click()
        await page.wait_for_url("**/value?id=report")
        await page.get_by_role("link", name="Graph").click()
        await page.wait_for_selector(".node.here:has-text('report')")


async def test_a_click_expands_a_value_and_once_more_hides_its_neighbours(
    running: Any, console: WebConsole, path: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}?id=report&depth=1")
        await page.locator(".node", has_text="total").click()
        await page.wait_for_selector(".node:has-text('item/19')")
        assert await page.locator(".node").count() == 2 + 22
        await page.get_by_role("link", name="Hide its neighbours").wait_for()
        await page.locator(".node", has_text="total").focus()
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".node:has-text('item/19')", state="detached")
        assert await page.locator(".node").count() == 2
        assert "total" in await page.evaluate("document.activeElement.textContent"), "the focus stays where it was"
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="Move it to the middle").click()
        await page.wait_for_selector(".node.here:has-text('total')")
        await page.wait_for_selector(".node-more:has-text('+10')")
        await page.locator(".node-more").click()
        await page.wait_for_url("**/neighbours?id=total&side=inputs")
        await page.wait_for_selector("text=22 inputs")
        await page.go_back()
        await page.wait_for_selector(".node.here")
        await page.locator(".node", has_text="report").focus()
        await page.keyboard.press("o")
        await page.wait_for_url("**/value?id=report")
        await page.goto(f"{console.url}{path}?id=total")
        await page.locator(".node", has_text="gone").click()
        await page.wait_for_url("**/value?id=gone")


async def test_several_values_are_expanded_at_once(running: Any, console: WebConsole, path: str) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}?id=item/3&depth=1")
        await page.locator(".node", has_text="total").click()
        await page.locator(".node", has_text="report").click()
        await page.wait_for_selector(".node.chosen[aria-expanded=true]:has-text('report')")
        assert await page.locator(".node[aria-expanded=true]").count() == 2
        assert await page.locator(".node", has_text="item/").count() > 12


async def test_what_is_moved_to_the_middle_is_in_sight(
    running: Any, console: WebConsole, client: RebaserClient, ws: str
) -> None:
    chain = [Derive(after, "sum", {"of": [before]}) for before, after in ("ab", "bc", "cd", "de")]
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1), *chain], wait="derived")
    async with opened(running, size="phone") as page:
        await page.goto(f"{console.url}/change-sets/{ws}/main/graph?id=a&depth=4")
        await page.locator(".node[data-id=e]").click()
        await page.get_by_role("link", name="Move it to the middle").click()
        await page.wait_for_selector(".node.here[data-id=e]")
        await page.wait_for_function("document.querySelector('.node.here').getBoundingClientRect().left < innerWidth")
