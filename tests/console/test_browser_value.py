"""Lists that are longer than a page, in a real browser: what uses a value, its history, its definitions on branches,
the rows of a page, and how far a large change set is loaded."""

import threading
from typing import Any

import pytest

from rebaser.console.api import elsewhere
from rebaser.console.reading import states
from rebaser.console.reading.states import BrowsedState
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.log import scan
from rebaser_core.state.change_set import ChangeSetState
from tests.console.test_browser_keyboard import reach
from tests.support.browser import MARKUP, Seen, check_page, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def path(client: RebaserClient, ws: str) -> str:
    edits: list[Update] = [
        Set("vat", MARKUP),
        *(Derive(f"user/{number:03}", "count", {"of": ["vat"]}) for number in range(130)),
    ]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived")
    return f"/change-sets/{ws}/main"


async def test_from_a_value_to_its_definition_on_a_branch(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        await client.create_branch(ws, name)
    await client.enqueue_updates_with_reply(ws, "two", [Set("vat", f"{MARKUP} of two")], wait="derived")
    monkeypatch.setattr(elsewhere, "LOOKED", 2)
    seen = Seen()
    async with opened(running, seen=seen) as page:
        await page.goto(f"{console.url}{path}/value?id=vat")
        table = page.get_by_role("region", name="Change sets with another definition")
        await table.get_by_role("link", name="two").wait_for()
        assert "a branch of this one" in await table.inner_text()
        assert "of two" in await table.inner_text()
        await page.get_by_role("navigation", name="Pages of change sets").get_by_role("link", name="Go on").click()
        await page.wait_for_selector("text=None of these has another definition")
        await page.go_back()
        await table.get_by_role("link", name="two").click()
        await page.wait_for_url(f"**/{ws}/two/value?id=vat")
        await page.wait_for_selector(".block.value:has-text('of two')")
        await page.get_by_role("link", name="main", exact=True).last.wait_for()
        assert "the target" in await table.inner_text()
        await check_page(page)
    assert seen.complaints == []


async def test_all_that_uses_a_value_is_read_by_keyboard_in_pages_of_a_size_that_is_remembered(
    running: Any, console: WebConsole, path: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}/value?id=vat")
        await page.wait_for_selector("text=the first 100")
        await reach(page, "All 130")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=1 to 100 of 130")
        await page.keyboard.press("]")
        await page.wait_for_selector("text=101 to 130 of 130")
        await page.get_by_label("Rows").select_option("25")
        await page.wait_for_selector("text=1 to 25 of 130")
        assert "limit=25" in page.url
        await page.goto(f"{console.url}{path}/neighbours?id=vat&side=dependents")
        await page.wait_for_selector("text=1 to 25 of 130")
        await page.keyboard.press("/")
        await page.keyboard.type("user/12")
        await page.wait_for_selector("text=10 values found")
        await page.goto(f"{console.url}{path}/neighbours?id=vat&side=dependents&limit=50")
        await page.wait_for_selector("text=1 to 50 of 130")


async def test_the_history_of_a_value_goes_on(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await client.enqueue_updates_with_reply(ws, "main", [Set("other", number)])
    monkeypatch.setattr(scan, "MAX_COMMITS", 3)
    async with opened(running) as page:
        await page.goto(f"{console.url}{path}/value?id=vat")
        await page.wait_for_selector("text=3 commits searched")
        await page.wait_for_selector("text=None of the commits that were searched defines it.")
        history = page.get_by_role("navigation", name="Pages of the history")
        region = page.get_by_role("region", name="Commits that defined it")
        while not await region.count():
            link = history.get_by_role("link", name="Go on")
            searched = await link.get_attribute("href")
            await link.click()
            further = page.locator(f"[aria-label='Pages of the history'] a[rel=next]:not([href='{searched}'])")
            await region.or_(further).first.wait_for()
        await history.get_by_role("link", name="Newest").click()
        await page.wait_for_selector("text=None of the commits that were searched defines it.")


async def test_values_are_filtered_by_state_kind_and_function(running: Any, console: WebConsole, path: str) -> None:
    async with opened(running) as page:
        await page.goto(console.url + path)
        await page.wait_for_selector("a.group")
        await page.get_by_label("Function").select_option("count")
        await page.wait_for_selector("text=130 found")
        assert "function=count" in page.url
        await page.get_by_role("navigation", name="State").get_by_role("link", name="In error").click()
        await page.wait_for_selector("text=No value matches.")
        await page.go_back()
        await page.get_by_label("Function").select_option("")
        await page.wait_for_selector("a.group")
        await page.get_by_role("navigation", name="Kind").get_by_role("link", name="Set", exact=True).click()
        await page.wait_for_selector("a.row-link:has-text('vat')")
        await page.wait_for_function("() => document.querySelectorAll('[data-rows] tr').length === 1")


async def test_while_a_large_change_set_is_loaded_the_page_tells_how_far(
    running: Any, console: WebConsole, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(state: ChangeSetState) -> BrowsedState:
        go_on.wait(240)
        return BrowsedState(state)

    monkeypatch.setattr(states, "BrowsedState", slow)
    async with opened(running) as page:
        await page.goto(console.url + path)
        try:
            await page.wait_for_selector(".loading:has-text('sorting ids')")
        finally:
            go_on.set()
        await page.wait_for_selector("a.group:has-text('user/')")
        await page.wait_for_selector(".loading", state="detached")


async def test_what_is_typed_stays_while_the_history_is_read(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await client.enqueue_updates_with_reply(ws, "main", [Set("other", number)])
    monkeypatch.setattr(scan, "MAX_COMMITS", 3)
    async with opened(running) as page:
        await page.goto(f"{acting.url}{path}/value?id=vat")
        await page.wait_for_selector("text=3 commits searched")
        await page.get_by_text("Edit this value").click()
        await page.get_by_label("Value, as JSON").fill("0.2")
        await client.enqueue_updates_with_reply(ws, "main", [Set("vat", 0.1)])
        await page.wait_for_selector("text=It was defined again")
        history = page.get_by_role("navigation", name="Pages of the history")
        await history.get_by_role("link", name="Go on").click()
        await history.get_by_role("link", name="Newest").wait_for()
        assert await page.get_by_label("Value, as JSON").input_value() == "0.2"
        assert await page.get_by_text("It was defined again").count() == 1
