"""The playground: only with it, what is checked while somebody types, what an edit tells, and the graph of the demo."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from rebaser.cli.commands.observing.playground import derive, make_playground
from rebaser.testing import LocalRebaser
from rebaser_client import RebaserClient, Set, UnprocessableError
from rebaser_core.updates import Match
from tests.console.test_browser_axe import axe, barriers
from tests.support.browser import Seen, browser, check_page, need_browser, opened
from tests.support.web_console import WebConsole, web_console

pytestmark = pytest.mark.anyio


@pytest.fixture
async def playing(anyio_backend: str, installation: LocalRebaser) -> AsyncIterator[WebConsole]:
    async with web_console(installation.url, actions=True, playground=make_playground()) as running:
        yield running


async def check(console: WebConsole, ws: str, formula: str) -> Any:
    return await console.get(f"/playground/check?workspace={ws}&changeSet=main&id=total&formula={quote(formula)}")


async def test_only_a_development_console_has_it(acting: WebConsole) -> None:
    for path in ("check?formula=1", "covered?commit=1"):
        assert (await acting.get(f"/playground/{path}&workspace=w&changeSet=c", 404))["error"]["code"] == (
            "no_such_playground"
        )
    for path in ("send", "demo"):
        body = {"workspace": "w", "changeSet": "c", "id": "a", "value": "1"}
        assert (await acting.act(f"/playground/{path}", body, 404))["error"]["code"] == "no_such_playground"
    assert b"data-playground" not in (await acting.ask("/playground")).body


async def test_a_formula_is_checked_with_its_inputs(playing: WebConsole, client: RebaserClient, ws: str) -> None:
    found = await check(playing, ws, "price * 2")
    assert (found["problem"], found["inputs"]) == ("", [{"name": "price", "id": "price", "state": "missing"}])
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 3), Set("cart/1/price", 4)])
    found = await check(playing, ws, "price + sum(`cart/*/price`) + `cart/1/price` + later")
    assert [(one["id"], one["state"]) for one in found["inputs"]] == [
        ("price", "ok"),
        ("cart/*/price", "pattern"),
        ("cart/1/price", "ok"),
        ("later", "missing"),
    ]
    assert "line 1" in (await check(playing, ws, "price *"))["problem"]
    assert (await check(playing, ws, "(" * 200 + "1" + ")" * 200))["problem"]
    assert (await playing.get(f"/playground/check?workspace={ws}&changeSet=main&formula={'1' * 4001}", 400))["error"]
    assert (await playing.get("/playground/check?workspace=a.b&changeSet=main&formula=1", 400))["error"]["code"] == (
        "invalid_id"
    )


async def test_an_edit_tells_when_it_was_applied_and_derived(
    playing: WebConsole, client: RebaserClient, ws: str
) -> None:
    place = {"workspace": ws, "changeSet": "main"}
    await playing.act("/playground/send", place | {"id": "price", "value": "3"})
    sent = await playing.act("/playground/send", place | {"id": "double", "formula": "price * 2"})
    assert (sent["updates"], sent["ms"] > 0) == (1, True)
    arrived = await playing.get(f"/playground/covered?workspace={ws}&changeSet=main&commit={sent['commit']}")
    assert (arrived["covered"], arrived["ms"] >= 0) == (True, True)
    assert (await client.values(ws, "main"))["double"].value == 6
    await playing.act("/playground/send", place | {"id": "double", "remove": True})
    assert await client.value(ws, "main", "double") is None
    for wrong in ({"id": "a", "formula": "1 +"}, {"id": "a", "value": "tea"}, {"id": "", "value": "1"}, {"id": "a"}):
        await playing.act("/playground/send", place | wrong, 400)


async def test_what_never_arrives_ends(playing: WebConsole, ws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser.console.api.playground.TIMEOUT", 0.1)
    arrived = await playing.get(f"/playground/covered?workspace={ws}&changeSet=main&commit=9")
    assert arrived["covered"] is False


async def test_the_graph_of_the_demo_is_loaded(playing: WebConsole) -> None:
    sent = await playing.act("/playground/demo", {})
    assert sent["updates"] > 100
    await playing.get(f"/playground/covered?workspace=demo&changeSet=main&commit={sent['commit']}")
    count = await playing.get("/change-sets/demo/main/value?id=env/count")
    assert int(count["value"]["text"]) > 10


def test_formulas_mean_what_they_mean_on_the_command_line() -> None:
    found = derive("total", "sum(`cart/*/price`) + fee")
    assert (found.id, found.function) == ("total", "cel")
    assert set(found.inputs.values()) == {Match("cart/*/price"), "fee"}
    with pytest.raises(UnprocessableError, match="line 1"):
        derive("total", "1 +")


async def test_somebody_tries_it_in_a_browser(playing: WebConsole, ws: str) -> None:
    need_browser()
    script, seen = axe(), Seen()
    async with browser() as running:
        for theme, size in (("light", "desk"), ("dark", "phone")):
            async with opened(running, theme=theme, size=size, seen=seen) as page:
                await page.goto(playing.url)
                await page.get_by_role("link", name="Playground").click()
                await page.wait_for_selector("h1:has-text('Playground')")
                assert await barriers(page, script) == []
                await page.fill("[name=workspace]", ws)
                await page.get_by_role("button", name="price = 9.5").click()
                await page.fill("[name=text]", "nonsense")
                await page.select_option("[name=kind]", "remove")
                await page.get_by_role("button", name="price = 9.5").click()
                assert await page.input_value("[name=text]") == "9.5", "also if it was chosen before"
                assert await page.input_value("[name=kind]") == "value"
                assert await page.input_value("[name=workspace]") == ws
                assert await page.get_by_text("Send overwrites").count() == 1
                await page.get_by_role("button", name="Send").click()
                await page.wait_for_selector("text=up to date")
                await page.get_by_role("button", name="gross =").click()
                await page.fill("[name=text]", "price *")
                await page.wait_for_selector(".check.bad")
                await page.fill("[name=text]", "price * 2.0 + fee")
                await page.wait_for_selector("text=The formula is valid")
                await page.wait_for_selector("text=does not exist yet")
                await page.fill("[name=text]", "price * 2.0")
                await page.wait_for_selector("text=does not exist yet", state="detached")
                assert await barriers(page, script) == []
                await page.get_by_role("button", name="Send").click()
                await page.get_by_role("link", name="Look at gross").click()
                await page.wait_for_selector("pre:has-text('19')")
                await check_page(page)
    assert seen.complaints == []
