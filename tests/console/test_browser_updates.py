"""Updates of derived values in a real browser: from what runs or fails, to one change set and its updates."""

import re
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from rebaser.runtime.recent_updates import RecentUpdates
from rebaser.testing import LocalRebaser, local_rebaser
from rebaser_client import Derive, RebaserClient, Set, Update
from tests.console.test_browser_keyboard import focused
from tests.support.browser import SIZES, Seen, check_page, in_each_look, opened
from tests.support.troubled_updates import troubled, troubled_updates
from tests.support.web_console import WebConsole, web_console

pytestmark = [pytest.mark.anyio]


@pytest.fixture(scope="module")
def installation() -> Iterator[LocalRebaser]:
    with local_rebaser(quiescent_period=0.05, progress_every=0.1) as running:
        yield running


async def test_an_update_is_watched_to_its_end_by_keyboard(
    running: Any, console: WebConsole, client: RebaserClient, ws: str
) -> None:
    await client.enqueue_updates_with_reply(
        ws, "good", [Set("a", 1), Derive("b", "sum", {"of": ["a"]})], wait="derived"
    )
    seen = Seen()
    with troubled_updates() as ended:
        await client.enqueue_updates_with_reply(ws, "hang", troubled("hang"))
        await client.enqueue_updates_with_reply(ws, "fail", troubled("fail"))
        async with opened(running, seen=seen) as page:
            await page.goto(console.url)
            await page.wait_for_selector(".tiles")
            await page.keyboard.press("g")
            await page.keyboard.press("u")
            await page.wait_for_selector("h1:has-text('Updates')")
            await page.keyboard.press("/")
            await page.keyboard.type(ws)
            await page.wait_for_selector("tr:has-text('hang'):has(.badge:has-text('updating')):has-text('local')")
            failing = page.locator("tr:has-text('fail'):has(.badge:has-text('failing'))")
            await failing.get_by_text("memory <b>than</b> there is").wait_for()
            assert await page.locator("main b").count() == 0
            await page.keyboard.press("Escape")
            await page.get_by_role("link", name=f"{ws}/hang").focus()
            await page.keyboard.press("ArrowDown")
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**/{ws}/fail/updates")
            await page.wait_for_selector(".notice strong:has-text('a function needs more memory')")
            await page.wait_for_selector("text=next try in")
            ended.set()
            await page.wait_for_selector("text=No update is due")
            await page.get_by_role("region", name="Updates").get_by_role("row").nth(1).wait_for()
    assert seen.complaints == []


async def test_the_time_of_each_stage_is_shown_if_a_server_knows_it(
    running: Any, installation: LocalRebaser, console: WebConsole, client: RebaserClient, ws: str, monkeypatch: Any
) -> None:
    await client.enqueue_updates_with_reply(
        ws, "main", [Set("a", 1), Derive("b", "sum", {"of": ["a"]})], wait="derived"
    )
    path = f"/change-sets/{ws}/main/updates"
    while not (await console.get(path))["rows"][0]["stages"]:  # noqa: ASYNC110 - a server reports it after its commit
        await anyio.sleep(0.02)
    async with opened(running) as page:
        await page.goto(console.url + path)
        await page.wait_for_selector("th:has-text('Time by stage')")
        text = await page.locator("td:has(svg.stages)").inner_text()
        assert re.fullmatch(r"plan \d+ m?s · Spark \d+ m?s · read \d+ m?s · store \d+ m?s", text.strip())
        widths = "document.querySelectorAll('.stages rect').values().map((one) => one.getBBox().width).toArray()"
        drawn = await page.evaluate(widths)
        assert len(drawn) == 4
        assert sum(drawn) == pytest.approx(100, abs=0.1), "to the scale of the slowest update, the only one"
        monkeypatch.setattr(RecentUpdates, "of", lambda *_: [])  # as after a restart of the server
        await page.reload()
        await page.wait_for_selector("td:has-text('local')")
        assert await page.get_by_text("Time by stage").count() == 0
        assert await page.get_by_text("The bars show").count() == 0


async def test_derived_values_are_computed_again_after_a_question(
    running: Any, acting: WebConsole, console: WebConsole, client: RebaserClient, ws: str
) -> None:
    edits: list[Update] = [Set("a", 1), Derive("b", "sum", {"of": ["a"]})]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived")
    path = f"/change-sets/{ws}/main/updates"
    async with opened(running) as page:
        await page.goto(console.url + path)
        await page.wait_for_selector("text=No update is due")
        assert await page.get_by_text("Recompute derived values").count() == 0, "this console only reads"
        await page.goto(acting.url + path)
        await page.get_by_text("Recompute derived values").click()
        await page.get_by_label("Only values of the function").fill("sum")
        await page.get_by_label("Author").fill("ann")
        before = (await acting.get(f"/change-sets/{ws}/main/commits"))["rows"][0]["position"]
        await page.get_by_role("button", name="Recompute…").press("Enter")
        question = page.get_by_role("alertdialog")
        await focused(page, "[role=alertdialog]")
        assert "all values of the function sum" in await question.inner_text()
        await question.get_by_role("button", name="Cancel").press("Enter")
        await question.wait_for(state="detached")
        await focused(page, "summary")
        assert (await acting.get(f"/change-sets/{ws}/main/commits"))["rows"][0]["position"] == before
        await page.get_by_role("button", name="Recompute…").click()
        await question.get_by_role("button", name="Recompute").click()
        await page.wait_for_selector("text=Asked for in commit")
        commits = (await acting.get(f"/change-sets/{ws}/main/commits"))["rows"]
        [request] = [one for row in commits if row["position"] > before for one in row["requests"]]
        assert request["author"] == "ann"


async def test_the_spark_ui_is_linked(running: Any, installation: LocalRebaser) -> None:
    async with web_console(installation.url, spark_ui="http://spark:4040/") as linked, opened(running) as page:
        await page.goto(f"{linked.url}/dvu")
        link = page.get_by_role("link", name="Spark UI")
        assert await link.get_attribute("href") == "http://spark:4040/"


@in_each_look
async def test_pages_open_without_a_complaint(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, theme: str, size: str
) -> None:
    seen = Seen()
    with troubled_updates():
        await client.enqueue_updates_with_reply(ws, "fail", troubled("fail"))
        async with opened(running, theme=theme, size=size, seen=seen) as page:
            for path, sign in ((f"/dvu?q={ws}", "tbody .badge"), (f"/change-sets/{ws}/fail/updates", ".notice.warn")):
                await page.goto(console.url + path)
                await page.wait_for_selector(sign)
                await check_page(page)
                for link in await page.query_selector_all("nav [aria-current=page]"):
                    box = await link.bounding_box()
                    assert box["x"] + box["width"] <= SIZES[size][0], "where one is, is in sight"
    assert seen.complaints == []
