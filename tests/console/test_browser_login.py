"""The page for the login in a real browser: by keyboard, in both themes, with no barrier, and to the page that was
wanted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rebaser.console.access.rules import TokenAccess
from rebaser.testing import LocalRebaser
from tests.console.test_browser_axe import axe, barriers
from tests.support.browser import WIDER, Seen, opened
from tests.support.web_console import WebConsole, end_sessions, web_console

pytestmark = pytest.mark.anyio
TOKEN = "the-token-of-this-console"
FOCUSED = "document.activeElement.name === 'token'"  # a browser may focus a field after it has loaded the page
WANTED = [
    "//evil.example.com",
    "/\\\\evil.example.com",
    "https://evil.example.com",
    "javascript:alert(1)",
    "data:,x",
    "/a/..//evil.example.com",
    "\t//evil.example.com",
    "http://[",
    "/login?next=/x",
    "/change-sets?q=a",
]


@pytest.fixture
def access() -> TokenAccess:
    return TokenAccess(TOKEN)


@pytest.fixture
async def locked(anyio_backend: str, installation: LocalRebaser, access: TokenAccess) -> AsyncIterator[WebConsole]:
    async with web_console(installation.url, access=access) as console:
        yield console


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_somebody_logs_in_by_keyboard_and_out(running: Any, locked: WebConsole, name: str) -> None:
    seen, url = Seen(), f"http://{name}:{locked.port}"
    async with opened(running, seen=seen) as page:
        await page.goto(f"{url}/change-sets?q=nothing")
        await page.wait_for_url(f"{url}/login?next=**")
        await page.wait_for_function(FOCUSED)
        await page.keyboard.type("a wrong token")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=this is not the token")
        await page.keyboard.type(f" {TOKEN}\n")
        await page.wait_for_url(f"{url}/change-sets?q=nothing")
        await page.wait_for_selector("[data-search]")
        assert await page.evaluate("document.cookie") == "", "no script can read the session"
        await page.goto(f"{url}/login?next=/branches")
        await page.wait_for_url(f"{url}/branches")
        await page.get_by_role("button", name="Log out").click()
        await page.wait_for_url(f"{url}/login")
        await page.goto(f"{url}/branches")
        await page.wait_for_url(f"{url}/login?next=**")
    refused = [text for text in seen.complaints if "status of 40" not in text]  # a browser's note on an answer
    assert refused == []


async def test_a_page_whose_session_ends_leads_to_the_login(
    running: Any, locked: WebConsole, access: TokenAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.console.stream.RETRY", 100)
    async with opened(running) as page:
        await page.goto(f"{locked.url}/")
        await page.wait_for_function(FOCUSED)
        await page.keyboard.type(f"{TOKEN}\n")
        await page.wait_for_selector(".tiles")
        end_sessions(access)
        await page.wait_for_url(f"{locked.url}/login?next=**")


@pytest.mark.parametrize(
    "event",
    [
        "document.dispatchEvent(new Event('visibilitychange'))",
        "window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))",
    ],
)
async def test_a_page_without_a_stream_is_not_shown_again_after_the_logout(
    running: Any, locked: WebConsole, event: str
) -> None:
    compare = f"{locked.url}/compare?workspace=none&a=main&b=draft"
    async with opened(running) as page:
        await page.goto(compare)
        await page.wait_for_function(FOCUSED)
        await page.keyboard.type(f"{TOKEN}\n")
        await page.wait_for_url(compare)
        await page.wait_for_selector("h1")
        await page.evaluate(event)
        other = await page.context.new_page()
        await other.goto(f"{locked.url}/branches")
        assert page.url == compare, "as long as the session lasts, it stays"
        await other.get_by_role("button", name="Log out").click()
        await other.wait_for_url(f"{locked.url}/login")
        await page.evaluate(event)
        await page.wait_for_url(f"{locked.url}/login?next=**")


async def test_no_address_leads_to_another_site(running: Any, locked: WebConsole) -> None:
    async with opened(running) as page:
        await page.goto(f"{locked.url}/login")
        goals = await page.evaluate(
            """async (wanted) => {
                const { goal } = await import("/static/js/login.js");
                return wanted.map((one) => goal("?next=" + encodeURIComponent(one), location.href));
            }""",
            WANTED,
        )
    away = [goal for goal in goals if not goal.startswith(f"{locked.url}/")]
    assert away == []
    assert goals[-1] == f"{locked.url}/change-sets?q=a"
    assert goals[5] == f"{locked.url}//evil.example.com", "a path of this console"


async def test_the_page_has_no_barrier(running: Any, locked: WebConsole) -> None:
    script = axe()
    for theme, size in (("light", "desk"), ("dark", "phone")):
        async with opened(running, theme=theme, size=size) as page:
            await page.goto(f"{locked.url}/login")
            await page.wait_for_function(FOCUSED)
            await page.keyboard.type("wrong\n")
            await page.wait_for_selector("text=this is not the token")
            assert await barriers(page, script) == []
            assert await page.evaluate(WIDER) <= 0
