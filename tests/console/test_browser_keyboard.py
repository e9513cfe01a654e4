"""The console by keyboard alone, in a real browser: the focus is never lost, and never hidden."""

from typing import Any

import anyio
import pytest

from rebaser_client import Derive, RebaserClient, Set, Update
from tests.support.browser import SIZES, Seen, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]

NOW = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
# Why a viewer cannot see what has the focus; empty if they can.
HIDDEN = """() => {
  const now = document.activeElement;
  if (now === document.body) return "nothing has the focus";
  const name = now.outerHTML.slice(0, 200);
  const { left, right, top, bottom } = now.getBoundingClientRect();
  if (right <= 0 || bottom <= 0 || left >= innerWidth || top >= innerHeight) return `${name} is out of sight`;
  const middle = (from, to, end) => (Math.max(from, 0) + Math.min(to, end)) / 2;
  const front = document.elementFromPoint(middle(left, right, innerWidth), middle(top, bottom, innerHeight));
  if (front === null || !(now.contains(front) || front.contains(now))) return `${name} is behind another part`;
  const drawn = now.matches(".node, .node-more") || getComputedStyle(now).outlineStyle !== "none";
  return drawn ? "" : `${name} looks as without the focus`;
}"""


@pytest.fixture
async def main(client: RebaserClient, ws: str) -> str:
    """A change set with an error, and a branch in conflict with it."""
    edits: list[Update] = [
        Set("price", 5.0),
        *(Set(f"cart/{number}", number) for number in range(20)),
        Derive("total", "sum", {"of": ["price", "fee", *(f"cart/{number}" for number in range(20))]}),
    ]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived", author="ann")
    await client.create_branch(ws, "draft")
    await client.enqueue_updates_with_reply(ws, "draft", [Set("price", 6.0)], wait="derived")
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 7.0)], wait="derived")
    await client.rebase(ws, "draft")
    return f"/change-sets/{ws}/main"


async def reach(page: Any, text: str, key: str = "Tab") -> None:
    """Press `key` until what is named `text` has the focus. All that has it on the way there can be seen."""
    for _ in range(80):
        await page.keyboard.press(key)
        problem = await page.evaluate(HIDDEN)
        assert problem in ("", "nothing has the focus"), problem  # behind the last part comes the browser's own bar
        if await page.evaluate(NOW) == text:
            return
    raise AssertionError(f"{text} is never reached")


async def focused(page: Any, selector: str) -> None:
    """Wait until what has the focus matches `selector`, and can be seen."""
    problem = ""
    with anyio.move_on_after(120):
        while True:
            problem = await page.evaluate(HIDDEN)
            if not problem and await page.evaluate("(wanted) => document.activeElement.matches(wanted)", selector):
                return
            await anyio.sleep(0.05)
    raise AssertionError(f"{selector} does not get the focus, which {await page.evaluate(NOW)!r} has {problem}")


@pytest.mark.parametrize("size", SIZES)
async def test_what_has_the_focus_is_in_sight(running: Any, acting: WebConsole, main: str, size: str) -> None:
    async with opened(running, size=size) as page:
        for path in ("?q=cart/", "/value?id=total", "/graph?id=total"):
            await page.goto(acting.url + main + path)
            await page.wait_for_selector(".loading", state="detached")
            await page.wait_for_selector("[data-rows] a, .node.here")
            for _ in range(2):  # to the end of the page and back to its top
                await reach(page, "Rebaser")


async def test_the_focus_follows_what_the_viewer_opens(running: Any, console: WebConsole, main: str) -> None:
    seen = Seen()
    async with opened(running, size="phone", seen=seen) as page:
        await page.goto(console.url + main)
        await page.wait_for_selector("[data-rows] a")
        await reach(page, "cart/")
        await page.keyboard.press("Enter")
        await focused(page, "[data-rows] tr:first-child a.row-link:not(.group)")
        await page.goto(console.url + main)
        await page.wait_for_selector("[data-rows] a")
        await page.keyboard.press("/")
        await page.keyboard.type("total")
        await page.wait_for_url("**q=total*")
        await page.wait_for_selector("tr:only-child:has-text('total')")
        await page.keyboard.press("Escape")
        await focused(page, ".row-link")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/value?id=total")
        await focused(page, "h1")
        await reach(page, "Graph")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".node.here")
        await reach(page, "total, error, missing_input")
        await page.keyboard.press("ArrowDown")
        await focused(page, ".node-more")
        await page.keyboard.press("ArrowUp")
        await focused(page, ".node.here")
        await page.keyboard.press("ArrowLeft")
        await focused(page, ".node:not(.here)")
        name = await page.evaluate(NOW)
        await page.keyboard.press("Enter")
        await focused(page, ".node.chosen[aria-expanded=true]")
        await page.keyboard.press("c")
        await focused(page, ".node.here")
        assert await page.evaluate(NOW) == name
    assert seen.complaints == []


async def test_the_focus_survives_actions_and_edits_of_others(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, main: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}/change-sets/{ws}/draft/conflicts")
        await page.wait_for_selector("article")
        await reach(page, "Take draft for price")
        await page.keyboard.press("Enter")
        await focused(page, "[data-outcome]")
        await reach(page, "Look at the changes, and apply them to main")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("form")
        await reach(page, "Apply 1 change")
        await page.keyboard.press("Enter")
        await focused(page, "[data-outcome]")
        assert "Applied to main" in await page.evaluate(NOW)
        await page.goto(f"{acting.url}{main}/value?id=cart/3")
        await page.wait_for_selector("summary")
        await reach(page, "Edit this value")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("33")
        await client.enqueue_updates_with_reply(ws, "main", [Set("cart/4", 44)], wait="derived")
        now = await client.branch(ws, "main")
        assert now is not None
        await page.wait_for_function(
            "(at) => Number(document.querySelector('.facts a[href*=\"?at=\"]').textContent) >= at", arg=now.sequence
        )
        await focused(page, "textarea")
        await reach(page, "Save")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Defined in commit")
        await focused(page, "button[type=submit]")
        await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Escape")
        await focused(page, "summary")
    assert (await client.value(ws, "main", "cart/3")).value == 33  # type: ignore[union-attr]


async def test_a_dialog_keeps_the_focus_and_gives_it_back(running: Any, console: WebConsole, main: str) -> None:
    async with opened(running) as page:
        await page.goto(console.url + main)
        await page.wait_for_selector("[data-rows] a")
        await reach(page, "total")
        await page.keyboard.press("?")
        await focused(page, ".dialog button")
        for key in ("Tab", "Tab", "Shift+Tab"):
            await page.keyboard.press(key)
            await focused(page, ".dialog button")
        await page.keyboard.press("Escape")
        await focused(page, ".row-link")
        assert await page.evaluate(NOW) == "total"
        theme = await page.evaluate("document.documentElement.dataset.theme")
        await page.keyboard.press("t")
        assert await page.evaluate("document.documentElement.dataset.theme") != theme
        await page.keyboard.press("ArrowUp")
        await focused(page, ".row-link")
        assert await page.evaluate(NOW) == "price"
