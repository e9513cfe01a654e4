"""Axe finds no barrier on any page, in either theme, on a desk and on a phone."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebaser.cli.commands.observing.playground import make_playground
from rebaser.testing import LocalRebaser
from rebaser_client import RebaserClient
from tests.console.screenshots import PAGES, bury, fill
from tests.support.browser import browser, need_browser, opened
from tests.support.draws import drawing
from tests.support.troubled_updates import troubled_updates
from tests.support.web_console import web_console

pytestmark = [pytest.mark.anyio]

LOOKS = (("light", "desk"), ("dark", "phone"))


def axe() -> str:
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("no axe: uv pip install axe-playwright-python")
    return (Path(spec.origin).parent / "axe.min.js").read_text()


async def barriers(page: Any, script: str) -> list[str]:
    """What axe finds on a page. The script comes through the debugger, since the page's policy would refuse it."""
    debugger = await page.context.new_cdp_session(page)
    await debugger.send("Page.setBypassCSP", {"enabled": True})
    await debugger.send("Runtime.evaluate", {"expression": script})
    found = await page.evaluate("axe.run(document)")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one look", "every look"])
async def test_no_page_has_a_barrier(
    anyio_backend: str,
    installation: LocalRebaser,
    client: RebaserClient,
    record_property: Callable[[str, object], None],
    every: bool,
) -> None:
    """In the short form, each page has one look, which is drawn."""
    need_browser()
    script = axe()
    drawn = sorted(drawing("looks of pages").sample(sorted(PAGES), len(PAGES) // 2))
    others = [name for name in PAGES if name not in drawn]
    looks = zip(LOOKS, ([*PAGES], [*PAGES]) if every else (drawn, others), strict=True)
    record_property("told", f"barriers: {'all' if every else ' '.join(drawn)} on a light desk")
    found: dict[str, list[str]] = {}
    playing = web_console(installation.url, actions=True, playground=make_playground())
    with troubled_updates():
        await bury(installation.url)
        await fill(client)
        async with playing as console, browser() as running:
            for (theme, size), names in looks:
                async with opened(running, theme=theme, size=size) as page:
                    for name in names:
                        await page.goto(console.url + PAGES[name])
                        await page.wait_for_selector("h1")
                        await page.wait_for_selector(".loading", state="detached")
                        assert await page.get_by_text("This cannot be shown").count() == 0, name
                        await page.evaluate(
                            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
                        )
                        if complaints := await barriers(page, script):
                            found[f"{name} {theme} {size}"] = complaints
    assert found == {}
