"""Branches in a real browser: from an error on `main` to the fix on a branch, its review, and the apply; conflicts."""

from typing import Any

import anyio
import pytest

from rebaser.console.shapes import MAX_INPUTS
from rebaser_client import Derive, RebaserClient, Set, Success
from tests.support.browser import MARKUP, Seen, check_pages, in_each_look, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def shop(client: RebaserClient, ws: str) -> str:
    """`main` with a value in error, and a branch that is in conflict with it."""
    total = Derive("total", "sum", {"of": ["price", "fee"]})
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 9.5), Set("fee", "none"), total], wait="derived")
    await client.create_branch(ws, "dearer", follow="manual")
    edits = [Set("price", 12.0), Set(MARKUP, MARKUP)]
    await client.enqueue_updates_with_reply(ws, "dearer", edits, wait="derived", message=MARKUP)
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 8.0), Set(MARKUP, "other")], wait="derived")
    await client.rebase(ws, "dearer")
    return f"/change-sets/{ws}"


@in_each_look
async def test_pages_open_without_a_complaint_and_texts_stay_texts(
    running: Any, acting: WebConsole, shop: str, theme: str, size: str
) -> None:
    paths = ("/branches", f"{shop}/dearer/changes?derived=yes", f"{shop}/dearer/conflicts")
    await check_pages(running, [(acting.url + path, "table, article") for path in paths], theme=theme, size=size)


async def test_a_definition_that_is_not_sent_in_full_cannot_be_edited(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str
) -> None:
    many = Derive("many", "sum", {f"i{number}": "price" for number in range(MAX_INPUTS + 1)})
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 1), many])
    async with opened(running) as page:
        await page.goto(f"{acting.url}/change-sets/{ws}/main/value?id=many")
        await page.wait_for_selector("text=(101 inputs) is too large to be edited here")
        assert await page.get_by_text("Edit this value").count() == 0


async def test_an_error_is_fixed_on_a_branch_reviewed_and_applied(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    seen = Seen()
    async with opened(running, seen=seen) as page:
        await page.goto(f"{acting.url}{shop}/main?state=error")
        await page.get_by_role("link", name="total").click()
        await page.get_by_role("region", name="Inputs").get_by_role("link", name="fee").click()
        await page.get_by_text("Edit this value").click()
        await page.get_by_label("Value, as JSON").fill("1.5")
        await page.get_by_label("On a new branch named").fill("fix")
        await page.get_by_label("Author").fill("ann")
        await page.get_by_label("Why").fill("the fee is a number")
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_url("**/fix/changes?derived=yes")
        await page.wait_for_selector("h2:has-text('1 change since main')")
        await page.wait_for_selector("section:has(h2:has-text('derived value')) tr:has-text('total')")
        assert await page.get_by_label("Author").input_value() == "ann", "the author is remembered"
        await page.get_by_role("button", name="Apply 1 change").click()
        told = r"Applied to main in commit (\d+)\. It can be reverted there"
        await page.wait_for_selector(f"text=/{told}/")
    assert (await client.value(ws, "main", "fee")).value == 1.5  # type: ignore[union-attr]
    assert seen.complaints == []


async def test_an_input_that_does_not_exist_is_defined_where_it_is_missed(
    running: Any, acting: WebConsole, console: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    bill = Derive("bill", "sum", {"of": ["price", "tips/new"]})
    await client.enqueue_updates_with_reply(ws, "main", [bill], wait="derived")
    async with opened(running) as page:
        await page.goto(f"{acting.url}{shop}/main/value?id=bill")
        await page.get_by_role("region", name="Inputs").get_by_role("link", name="tips/new").click()
        await page.wait_for_selector("text=There is no such value")
        await page.get_by_text("Define this value").click()
        await page.get_by_label("Value, as JSON").fill("2")
        await page.get_by_label("On a new branch named").fill("tips")
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_url("**/tips/changes?derived=yes")
        await page.wait_for_selector(
            "section:has(h2:has-text('derived value')) tr:has-text('bill'):has-text('missing_input')"
        )
        await page.goto(f"{acting.url}{shop}/main/value?id=tips/new")
        await page.get_by_text("Define this value").click()
        await page.get_by_label("Value, as JSON").fill("3")
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_selector("text=It was set by hand")
        await page.goto(f"{console.url}{shop}/main/value?id=nowhere")
        await page.wait_for_selector("text=There is no such value")
        assert await page.get_by_text("Define this value").count() == 0, "this console only reads"
        await client.enqueue_updates_with_reply(ws, "main", [Set("nowhere", 4)], wait="derived")
        await page.wait_for_selector("text=Up to date")
    assert (await client.value(ws, "main", "tips/new")).value == 3  # type: ignore[union-attr]


async def test_an_edit_of_somebody_else_does_not_slip_under_what_is_typed(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}{shop}/main/value?id=price")
        await page.get_by_text("Edit this value").click()
        text = page.get_by_label("Value, as JSON")
        await text.fill("7.0")
        await page.get_by_label("Author").fill("ann")
        await client.enqueue_updates_with_reply(ws, "main", [Set("price", 6.0)], wait="derived")
        await page.wait_for_selector("text=It was defined again")
        assert await text.input_value() == "7.0", "it stays"
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_selector("text=Nothing was done")
        assert (await client.value(ws, "main", "price")).value == 6.0  # type: ignore[union-attr]
        await page.get_by_role("button", name="Begin again").click()
        await page.wait_for_selector("text=It was defined again", state="detached")
        assert await text.input_value() == "6.0"
        await text.fill("7.5")
        await page.get_by_role("button", name="Save").click()
        await page.wait_for_selector("text=Defined in commit")
        assert (await client.value(ws, "main", "price")).value == 7.5  # type: ignore[union-attr]
        await page.get_by_role("region", name="Values that use it").get_by_role("link", name="total").click()
        await page.wait_for_selector("h2:has-text('total')")
        await page.get_by_text("Edit this value").click()
        assert await page.locator("text=Defined in commit").count() == 0, "that was another value"


async def test_a_page_whose_script_comes_late_does_not_replace_the_next_one(running: Any, console: WebConsole) -> None:
    release = anyio.Event()

    async def hold(route: Any) -> None:
        await release.wait()
        await route.continue_()

    async with opened(running) as page:
        await page.goto(f"{console.url}/")
        nav = page.get_by_role("navigation", name="Pages of the console")
        await page.route("**/pages/branches.js", hold)
        await nav.get_by_role("link", name="Branches").click()
        await nav.get_by_role("link", name="Change sets").click()
        await page.wait_for_selector("h1:has-text('Change sets')")
        release.set()
        await page.evaluate("import('/static/js/pages/branches.js').then(() => new Promise(requestAnimationFrame))")
        assert await page.locator("h1").inner_text() == "Change sets"
        assert "Change sets" in await page.title()


async def test_conflicts_are_settled_side_by_side(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}/branches?q={ws}")
        await page.get_by_role("link", name="dearer").click()
        await page.get_by_role("link", name="Settle them").click()
        card = page.locator("article:has-text('price')")
        assert "12.0" in (text := await card.inner_text())
        assert "8.0" in text
        await card.get_by_role("button", name="Take main for price").click()
        await page.wait_for_selector("text=1 conflict settled: price as in main")
        assert (await client.value(ws, "dearer", "price")).value == 8.0  # type: ignore[union-attr]
        await card.wait_for(state="detached")
        other = page.locator("article")
        await other.get_by_text("Give a new value").click()
        await other.get_by_label("Value, as JSON").fill("tea")
        await other.get_by_role("button", name="Settle").click()
        await page.wait_for_selector("text=is not JSON")
        await other.get_by_label("Value, as JSON").fill('{"function": "sum", "inputs": {"of": ["price", "price"]}}')
        await other.get_by_label("it is a definition").check()
        await other.get_by_role("button", name="Settle").click()
        await page.wait_for_selector("text=No conflicts")
    assert (await client.items(ws, "dearer", MARKUP))[0].definition == Derive(MARKUP, "sum", {"of": ("price", "price")})


async def test_without_actions_nothing_can_be_pressed(running: Any, console: WebConsole, shop: str) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}{shop}/dearer/conflicts")
        await page.wait_for_selector("text=rebaser resolve")
        await page.goto(f"{console.url}{shop}/main/value?id=fee")
        await page.wait_for_selector("text=It was set by hand")
        assert await page.locator("main button").count() == 0
        assert await page.locator("main form").count() == 0


async def test_a_commit_is_reverted_here_or_on_a_branch(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    seen = Seen()
    slip = await client.enqueue_updates_with_reply(ws, "main", [Set("price", -1.0)], wait="derived", author="bob")
    assert isinstance(slip.status, Success)
    async with opened(running, seen=seen) as page:
        await page.goto(f"{acting.url}{shop}/main/commits")
        await page.get_by_role("link", name=str(slip.status.commit), exact=True).last.click()
        await page.get_by_text("Revert this commit").click()
        await page.get_by_label("On a new branch named").fill("mend")
        await page.get_by_label("Why").fill("a slip")
        await page.get_by_role("button", name="Revert").click()
        await page.wait_for_url("**/mend/changes?derived=yes")
        await page.wait_for_selector("tr:has-text('price')")
        assert (await client.value(ws, "mend", "price")).value == 8.0  # type: ignore[union-attr]
        await client.protect(ws, "main")
        await page.goto(f"{acting.url}{shop}/main/commit?at={slip.status.commit}")
        await page.get_by_text("Revert this commit").click()
        await page.wait_for_selector("input[placeholder='main is protected'][required]")
        await client.unprotect(ws, "main")
        await page.wait_for_selector("input[placeholder='empty: in main itself']")
        await page.get_by_role("button", name="Revert").click()
        await page.wait_for_selector("text=1 edit reverted in commit")
    assert (await client.value(ws, "main", "price")).value == 8.0  # type: ignore[union-attr]
    assert seen.complaints == []


async def test_a_change_set_that_is_deleted_while_it_is_shown_shows_nothing_old(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    async with opened(running) as values, opened(running) as value, opened(running) as changes:
        await values.goto(f"{acting.url}{shop}/dearer")
        await values.wait_for_selector("text=price")
        await value.goto(f"{acting.url}{shop}/dearer/value?id=price")
        await value.wait_for_selector("text=Up to date")
        await changes.goto(f"{acting.url}{shop}/dearer/changes")
        await changes.wait_for_selector("table")
        await client.delete_change_set(ws, "dearer")
        await values.wait_for_selector("text=The change set was deleted.")
        await changes.wait_for_selector("text=The branch is closed (deleted).")
        await value.wait_for_selector("text=has no value 'price'")
        assert await value.get_by_text("Up to date").count() == 0
        await client.reopen_change_set(ws, "dearer")
        await value.wait_for_selector("text=Up to date")
        assert await value.get_by_text("has no value").count() == 0


async def test_a_branch_is_created_closed_and_reopened(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}{shop}/main")
        await page.get_by_text("Create a branch, or close").click()
        creating = page.get_by_role("form", name="Create a branch")
        await creating.get_by_label("A branch of main named").fill("dearer")
        await creating.get_by_role("button", name="Create").click()
        await page.wait_for_selector("text=Nothing was done")
        await creating.get_by_label("A branch of main named").fill("trial")
        await creating.get_by_role("button", name="Create").click()
        await page.wait_for_url("**/trial")
        await page.get_by_text("Create a branch, or close").click()
        await page.get_by_role("button", name="Close trial").click()
        await page.wait_for_selector("text=It is closed.")
        await page.get_by_role("button", name="Reopen trial").click()
        await page.wait_for_selector("text=It is open again.")
    found = await client.branch(ws, "trial")
    assert found is not None
    assert (found.target, found.status) == ("main", "open")
