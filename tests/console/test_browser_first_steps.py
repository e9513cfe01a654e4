"""What a newcomer does in the console, in a real browser: the first look, a search, a conflict, an applied branch."""

import json
from typing import Any

import pytest

from rebaser_client import Derive, RebaserClient, Set
from tests.support.browser import opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]

FOCUS = "document.activeElement.textContent.trim()"
CODE = "**/pages/overview.js*"


@pytest.fixture
async def shop(client: RebaserClient, ws: str) -> str:
    """`main` with a derived value in error, and the branch `dearer`, in conflict with it."""
    total = Derive("total", "sum", {"of": ["price", "fee"]})
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 4.5), Set("fee", "none"), total], wait="derived")
    await client.create_branch(ws, "dearer", follow="manual")
    await client.enqueue_updates_with_reply(ws, "dearer", [Set("price", 5.0), Set("fee", 1.0)], wait="derived")
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 4.8)], wait="derived")
    await client.rebase(ws, "dearer")
    return f"/change-sets/{ws}"


async def test_a_page_is_shown_when_the_console_that_was_away_answers_again(running: Any, console: WebConsole) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}/branches")
        await page.wait_for_selector("h1:text-is('Branches')")
        await page.route("**/*", lambda route: route.abort())
        await page.get_by_role("link", name="Overview").click()
        await page.wait_for_selector("[role=alert]:has-text('The console is away')")
        assert await page.get_by_role("link", name="Overview").get_attribute("aria-current") == "page"
        await page.unroute("**/*")
        await page.wait_for_selector(".tiles")


async def test_a_page_without_its_code_says_so_and_can_be_loaded_again(running: Any, console: WebConsole) -> None:
    async with opened(running) as page:
        await page.route(CODE, lambda route: route.abort())
        await page.goto(console.url)
        await page.wait_for_selector("h1:text-is('This page could not be loaded')")
        await page.unroute(CODE)
        await page.get_by_role("button", name="Load it again").click()
        await page.wait_for_selector(".tiles")


async def test_the_overview_of_an_empty_installation_says_how_to_begin(running: Any, console: WebConsole) -> None:
    overview = await console.get("/overview")
    empty = json.dumps({**overview, "total": 0, "changeSets": []})
    async with opened(running) as page:
        await page.route(
            "**/live?of=*overview*",
            lambda route: route.fulfill(content_type="text/event-stream", body=f"event: state\ndata: {empty}\n\n"),
        )
        await page.goto(console.url)
        await page.wait_for_selector("text=There is no change set yet. Create one: rebaser enqueue WS main")


async def test_a_phone_breaks_no_word_of_the_headline_or_of_short_ids(
    running: Any, console: WebConsole, shop: str
) -> None:
    heights = "nodes => nodes.map(node => node.getBoundingClientRect().height)"
    async with opened(running, size="phone") as page:
        await page.goto(console.url)
        await page.wait_for_selector(".headline")
        assert (await page.locator(".headline > div").bounding_box())["width"] >= 200
        await page.goto(f"{console.url}{shop}/main/value?id=total")
        inputs = page.get_by_role("region", name="Inputs").locator("a.row-link .id")
        await inputs.first.wait_for()
        assert max(await inputs.evaluate_all(heights)) < 30, "each on one line"


async def test_the_keys_stand_beside_what_they_do(running: Any, console: WebConsole) -> None:
    apart = "nodes => nodes.map(row => row.querySelector('kbd').getBoundingClientRect().right"
    apart += " < row.querySelector('dd').getBoundingClientRect().left)"
    async with opened(running) as page:
        await page.goto(f"{console.url}/branches")
        await page.get_by_role("button", name="Show the keys").click()
        await page.wait_for_selector(".keys")
        found = await page.locator(".keys > div").evaluate_all(apart)
        assert len(found) > 5
        assert all(found)


async def test_an_arrow_leads_from_a_search_to_what_it_found(running: Any, console: WebConsole, shop: str) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{shop}/main")
        await page.wait_for_selector("td:has-text('price')")
        await page.keyboard.press("/")
        await page.keyboard.type("tot")
        await page.wait_for_selector("text=1 found")
        await page.keyboard.press("ArrowDown")
        assert await page.evaluate(FOCUS) == "total"
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/value?id=total")


async def test_a_conflict_is_settled_from_the_list_and_an_applied_branch_tells_its_commit(
    running: Any, acting: WebConsole, shop: str, ws: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}/branches?q={ws}")
        await page.get_by_role("link", name="1 conflict").click()
        await page.get_by_role("button", name="Take dearer for price").click()
        await page.wait_for_selector("text=1 conflict settled")
        await page.wait_for_selector(".tabs a[aria-current]:text-is('Conflicts 0')")
        await page.get_by_role("link", name="Look at the changes, and apply them to main").click()
        await page.get_by_role("button", name="Apply 2 changes").click()
        await page.wait_for_selector("text=It can be reverted there")
        await page.reload()
        await page.locator("p:has-text('it was applied, in commit') a").click()
        await page.wait_for_url(f"**{shop}/main/commit?at=*")
        await page.wait_for_selector("td:has-text('price')")


async def test_a_result_that_is_being_computed_is_not_shown_as_null(
    running: Any, console: WebConsole, shop: str
) -> None:
    async with opened(running) as page:

        async def unfinished(route: Any) -> None:
            reply = await route.fetch()
            found = await reply.json()
            for row in found["derived"]:
                row["after"] |= {"state": "stale", "text": "null", "error": None}
            await route.fulfill(response=reply, json=found)

        await page.route("**/api/v1/**/changes?*", unfinished)
        await page.goto(f"{console.url}{shop}/dearer/changes?derived=yes")
        await page.wait_for_selector("tr:has-text('total') >> text=is being computed")
        assert await page.get_by_text("null").count() == 0


async def test_a_decimal_comma_is_answered_with_how_to_write_a_number(
    running: Any, acting: WebConsole, shop: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}{shop}/main/value?id=price")
        await page.get_by_text("Edit this value").click()
        await page.get_by_label("Value, as JSON").fill("7,9")
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_selector("[role=alert]:has-text('write a number with a point, as in 7.9')")
