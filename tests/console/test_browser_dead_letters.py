"""Dead letters in a real browser: looked at, chosen, sent again, dropped."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rebaser_client import RebaserClient
from tests.console.test_api_dead_letters import letters
from tests.support.browser import SIZES, Seen, browser, need_browser, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]
__all__ = ["letters"]


@pytest.fixture
async def running(anyio_backend: str) -> AsyncIterator[Any]:
    need_browser()
    async with browser() as started:
        yield started


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_pages_open_without_a_complaint_and_texts_stay_texts(
    running: Any, acting: WebConsole, ws: str, letters: list[int], theme: str, size: str
) -> None:
    seen = Seen()
    async with opened(running, theme=theme, size=size, seen=seen) as page:
        for path in (f"/dead-letters?workspace={ws}", f"/dead-letters/letter?sequence={letters[0]}"):
            await page.goto(acting.url + path)
            await page.wait_for_selector("table")
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} pixels wider than the window"
            assert await page.locator("main img").count() == 0
    assert seen.complaints == []


async def test_one_is_sent_again_and_the_others_dropped_after_their_number_is_typed(
    running: Any, acting: WebConsole, client: RebaserClient, ws: str, letters: list[int]
) -> None:
    async with opened(running) as page:
        await page.goto(f"{acting.url}/dead-letters?workspace={ws}")
        await page.locator("a.row-link").first.click()
        await page.wait_for_selector("text=X-Hello")
        await page.get_by_role("button", name="Send again").click()
        await page.wait_for_selector("text=1 sent again")
        await page.goto(f"{acting.url}/dead-letters?workspace={ws}")
        boxes = page.locator("tbody input[type=checkbox]")
        await boxes.nth(0).check()
        await boxes.nth(1).check()
        drop = page.get_by_role("button", name="Drop for good")
        assert await drop.is_disabled()
        await page.get_by_label("To confirm").fill("2")
        await drop.click()
        await page.wait_for_selector("text=2 dropped")
    left = [letter.sequence async for letter in client.dead_letters.find(ws)]
    assert set(left).isdisjoint(letters)
