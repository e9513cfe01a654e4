"""The pages of one change set in a real browser: from a failing value to its cause, live, and hostile texts."""

from typing import Any

import pytest

from rebaser_client import Derive, RebaserClient, Set, Update
from tests.support.browser import MARKUP, check_pages, in_each_look, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]

TABS = ("", "/commits", "/explain", "/value?id=cart/total", "/commit")


@pytest.fixture
async def path(client: RebaserClient, ws: str) -> str:
    edits: list[Update] = [
        Set("cart/1/price", 9.5),
        Set("cart/2/price", "nine"),
        Derive("cart/total", "sum", {"values": ["cart/1/price", "cart/2/price"]}),
        Derive("invoice", "sum", {"values": ["cart/total"]}),
        Set(MARKUP, MARKUP),
        Derive("broken " + MARKUP, "sum", {MARKUP: [MARKUP]}),
    ]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived", author=MARKUP, message=MARKUP)
    return f"/change-sets/{ws}/main"


@in_each_look
async def test_pages_open_without_a_complaint_and_texts_stay_texts(
    running: Any, console: WebConsole, path: str, theme: str, size: str
) -> None:
    await check_pages(running, [(console.url + path + tab, ".tabs") for tab in TABS], theme=theme, size=size)


async def test_from_a_failing_value_to_its_cause_in_four_clicks(running: Any, console: WebConsole, path: str) -> None:
    async with opened(running) as page:
        await page.goto(console.url + path)
        await page.get_by_role("link", name="In error").click()
        await page.get_by_role("link", name="invoice", exact=True).click()
        await page.wait_for_selector("text=here it began")
        await page.locator(".path a").last.click()
        await page.wait_for_selector("h2:has-text('total')")
        inputs = page.get_by_role("region", name="Inputs")
        assert "“nine”" in (text := await inputs.inner_text()) or '"nine"' in text
        await inputs.get_by_role("link", name="cart/2/price").click()
        await page.wait_for_selector("text=It was set by hand")
        await page.go_back()
        await page.wait_for_selector("h2:has-text('total')")


async def test_a_chip_that_is_clicked_while_somebody_types_keeps_the_search(
    running: Any, console: WebConsole, path: str
) -> None:
    async with opened(running) as page:
        await page.goto(console.url + path)
        await page.wait_for_selector("tr:has-text('invoice')")
        await page.evaluate(
            """() => {
              const field = document.querySelector("[data-search]");
              field.value = "total";
              field.dispatchEvent(new Event("input", { bubbles: true }));
              [...document.querySelectorAll(".chip")].find((chip) => chip.innerText.startsWith("In error")).click();
            }"""
        )
        await page.wait_for_selector("tr:has-text('total')")
        await page.wait_for_selector("tr:has-text('invoice')", state="detached")
        assert sorted(page.url.partition("?")[2].split("&")) == ["q=total", "state=error"]
        assert await page.input_value("[data-search]") == "total"


async def test_a_change_set_with_values_in_error_is_quiet_but_not_well(
    running: Any, console: WebConsole, path: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}/explain")
        await page.wait_for_selector("text=nothing waits, but 3 values are in error")
        assert await page.locator(".reasons .good").count() == 0
        await page.get_by_role("link", name="Look at the values in error").click()
        await page.wait_for_selector("tr:has-text('invoice')")
        assert page.url.endswith(f"{path}?state=error")


async def test_a_value_names_the_edit_in_the_branch_and_the_commit_that_applied_it(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, path: str
) -> None:
    await client.create_branch(ws, "dearer", follow="manual")
    edit = await client.enqueue_updates_with_reply(
        ws, "dearer", [Set("cart/1/price", 12)], author="ann", wait="derived"
    )
    await client.apply(ws, "dearer", author="dan")
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}/value?id=cart/1/price")
        await page.wait_for_selector("text=applied to")
        assert "ann" in await page.locator("p.facts:has-text('dearer@')").inner_text()
        assert "dan" in await page.locator("p.facts:has-text('applied to')").inner_text()
        await page.get_by_role("link", name=f"dearer@{edit.status.commit}").click()
        await page.wait_for_url(f"**/change-sets/{ws}/dearer/commit?at={edit.status.commit}")


async def test_an_edit_shows_without_a_reload(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, path: str
) -> None:
    async with opened(running) as page:
        await page.goto(console.url + path + "?prefix=cart/")
        await page.wait_for_selector("text=cart")
        await client.enqueue_updates_with_reply(ws, "main", [Set("cart/2/price", 1.0)], wait="derived")
        await page.wait_for_selector("tr:has-text('total') >> text=10.5")
        await page.goto(console.url + path + "/commits")
        await page.wait_for_selector("text=derived values")
        await client.enqueue_updates_with_reply(ws, "main", [Set("fee", 1)], message="a new fee")
        await page.wait_for_selector("text=a new fee")


async def test_the_tree_is_walked_by_keyboard(running: Any, console: WebConsole, path: str) -> None:
    async with opened(running) as page:
        await page.goto(console.url + path)
        await page.wait_for_selector("a.group")
        await page.locator("a.group").first.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_selector("a.row-link:has-text('total')")
        assert "prefix=cart%2F" in page.url
        await page.locator("[data-rows] .row-link").first.focus()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("h2:has-text('total')")
