"""Dead letters in a real browser: looked at, chosen, sent again, dropped."""

from typing import Any

import pytest

from rebaser_client import DeadLetterBox, RebaserClient
from rebaser_core.errors import TransientError
from tests.console.test_api_dead_letters import letters
from tests.support.browser import check_pages, in_each_look, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]
__all__ = ["letters"]


@in_each_look
async def test_pages_open_without_a_complaint_and_texts_stay_texts(
    running: Any, acting: WebConsole, ws: str, letters: list[int], theme: str, size: str
) -> None:
    paths = (f"/dead-letters?workspace={ws}", f"/dead-letters/letter?sequence={letters[0]}")
    await check_pages(running, [(acting.url + path, "table") for path in paths], theme=theme, size=size)


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


async def test_one_that_cannot_be_sent_again_stays(
    running: Any, acting: WebConsole, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> bool:
        raise TransientError("the queue is full")

    monkeypatch.setattr(DeadLetterBox, "redrive", full)
    async with opened(running) as page:
        await page.goto(f"{acting.url}/dead-letters/letter?sequence={letters[0]}")
        await page.get_by_role("button", name="Send again").click()
        await page.wait_for_selector("text=1 failed: the queue is full")
        assert await page.get_by_text("X-Hello").count() == 1
