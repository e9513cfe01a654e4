"""Journeys of viewers who have only a keyboard, a phone, or colours of their own, through names that are hard to
show."""

import shlex
from typing import Any

import pytest

from rebaser.testing import LocalRebaser
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.console.test_browser_keyboard import reach
from tests.support.browser import SIZES, Seen, check_page, opened
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

IDS = [
    "--all",
    "it's $(x)",
    "x" * 200,
    "a/" * 40 + "z",
    "<script>alert(1)</script>",
    "100%/50%25",
    'q"\\?b#c&d',
    "__proto__",
]


@pytest.mark.parametrize("size", SIZES)
async def test_hard_names_fit_and_suggested_commands_quote_them(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, size: str
) -> None:
    space = f"-{ws}"
    await client.enqueue_updates_with_reply(space, "-main", [Set(id_, 1) for id_ in IDS], wait="derived")
    await client.create_branch(space, "-draft", parent="-main")
    for name, number in (("-draft", 2), ("-main", 3)):
        await client.enqueue_updates_with_reply(space, name, [Set(id_, number) for id_ in IDS], wait="derived")
    await client.rebase(space, "-draft")
    seen = Seen()
    async with opened(running, size=size, seen=seen) as page:
        for path in ("/-main", "/-main?q=*", "/-main/commits", "/-draft/changes?derived=yes", "/-draft/conflicts"):
            await page.goto(f"{console.url}/change-sets/{space}{path}")
            await page.wait_for_selector("[data-rows] a, article")
            await check_page(page)
        commands = await page.locator("article p.mono").all_inner_texts()
        await page.goto(f"{console.url}/change-sets/{space}/-main/value?id={'x' * 200}")
        await page.wait_for_selector(".block.value")
        await check_page(page)
    assert sorted(shlex.split(line)[-1] for line in commands) == sorted(IDS)
    assert {shlex.split(line)[2] for line in commands} == {"--take"}
    assert seen.complaints == []


async def test_from_why_it_waits_to_the_dead_letters_of_the_change_set_by_keyboard(
    running: Any, console: WebConsole, installation: LocalRebaser, client: RebaserClient, ws: str
) -> None:
    async with Connection.connect(installation.url) as connection:
        for name in ("main", "other"):
            subject = Subjects("").requests(ChangeSetKey(ws, name))
            await JetStream(connection).publish(subject, b"no request", {"Nats-Msg-Id": f"{ws}-{name}"})
            await client.enqueue_updates_with_reply(ws, name, [Set("a", 1)])
    async with opened(running) as page:
        await page.goto(f"{console.url}/change-sets/{ws}/main")
        await page.wait_for_selector("[data-rows] a")
        await reach(page, "Why it waits")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=could not be processed")
        await reach(page, "Look at them")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name=f"{ws}/main").wait_for()
        assert await page.locator("[data-rows] tr").count() == 1
        await reach(page, "show all")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name=f"{ws}/other").wait_for()


async def test_a_missing_input_is_defined_on_a_branch_by_keyboard(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str
) -> None:
    """A value in error, the input that it misses, a branch, what changes there, back and forth, and the apply."""
    edits: list[Update] = [Set("price", 9), Derive("total", "sum", {"of": ["price", "fee"]})]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived")
    async with opened(running, size="phone", theme="dark") as page:
        await page.goto(f"{acting.url}/change-sets/{ws}/main?state=error")
        await page.wait_for_selector("[data-rows] a")
        await reach(page, "total")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".notice.bad")
        await reach(page, "fee")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=There is no such value")
        await reach(page, "Define this value")
        await page.keyboard.press("Space")
        await page.keyboard.press("Tab")
        await page.keyboard.type("1" + "0" * 400)
        await page.keyboard.press("Tab")
        await page.keyboard.type("mended")
        await reach(page, "Save")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Nothing was done")
        assert "mended" in await page.input_value("input[name=name]"), "what was typed stays"
        await page.focus("textarea")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("1")
        await reach(page, "Save")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/mended/changes?derived=yes")
        await page.wait_for_selector("text=1 derived value with another result")
        await page.go_back()
        await page.wait_for_url("**/value?id=fee")
        await page.go_forward()
        await page.wait_for_selector("text=Apply to main")
        await page.reload()
        await page.wait_for_selector("text=1 derived value with another result")
        await reach(page, "Apply 1 change")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Applied to main")
    found = await client.value(ws, "main", "fee")
    assert found is not None
    assert found.value == 1


async def test_what_is_chosen_shows_in_the_colours_of_the_system(running: Any, console: WebConsole) -> None:
    context = await running.new_context(forced_colors="active", reduced_motion="reduce")
    context.set_default_timeout(120_000)
    page = await context.new_page()
    await page.goto(f"{console.url}/change-sets")
    await page.wait_for_selector(".chip")
    borders = "(links) => links.map((link) => [link.ariaCurrent, getComputedStyle(link).borderBottomColor])"
    found = await page.eval_on_selector_all(".main-nav a", borders)
    chosen = {color for current, color in found if current}
    assert chosen.isdisjoint({color for current, color in found if not current})
    assert await page.evaluate("document.getAnimations().length") == 0
    await context.close()
