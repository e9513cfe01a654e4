"""The overview and the table of change sets in a real browser: both themes, all sizes, live, by keyboard."""

import json
import re
from typing import Any

import anyio
import pytest

from rebaser.console import stream
from rebaser.testing import LocalRebaser
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.nats.connection import Connection
from rebaser_core.streams.subjects import Subjects
from tests.support.browser import Seen, check_pages, in_each_look, opened
from tests.support.web_console import WebConsole

pytestmark = [pytest.mark.anyio]

HOSTILE = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
PAGES = {"/": ".tiles", "/change-sets": ".chips"}


@in_each_look
async def test_pages_open_without_a_complaint(
    running: Any, console: WebConsole, client: RebaserClient, ws: str, theme: str, size: str
) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)])
    pages = [(console.url + path, sign) for path, sign in PAGES.items()]
    seen = await check_pages(running, pages, theme=theme, size=size)
    assert {url.split("/")[2] for url in seen.loaded if not url.startswith("data:")} == {f"127.0.0.1:{console.port}"}


async def test_a_new_change_set_appears_without_a_reload_and_is_found(
    running: Any, console: WebConsole, client: RebaserClient, ws: str
) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}/change-sets")
        await page.wait_for_selector("[data-search]")
        await page.keyboard.press("/")
        await page.keyboard.type(ws)
        await page.wait_for_url(f"**/change-sets?q={ws}")  # not the beginning of it, when a key comes late
        await page.wait_for_selector("text=No change set has such a name")
        await client.enqueue_updates_with_reply(ws, "draft-1", [Set("a", 1)])
        await page.wait_for_selector(f"a[href='/change-sets/{ws}/draft-1']")
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="Overview").click()
        await page.wait_for_selector(".tiles")
        await page.go_back()
        await page.wait_for_selector(f"a[href='/change-sets/{ws}/draft-1']")
        assert await page.input_value("[data-search]") == ws
        await page.goto(f"{console.url}/change-sets?q={ws}&offset=100")
        await page.get_by_role("navigation", name="Pages", exact=True).get_by_text("none of 1").wait_for()


async def test_change_sets_with_errors_are_found(
    running: Any, console: WebConsole, client: RebaserClient, ws: str
) -> None:
    bad: list[Set | Derive] = [Set("a", "no number"), Derive("sum", "sum", {"of": ["a"]})]
    await client.enqueue_updates_with_reply(ws, "bad", bad, wait="derived")
    await client.enqueue_updates_with_reply(ws, "good", [Set("a", 1)])
    async with opened(running) as page:
        await page.goto(f"{console.url}/change-sets?q={ws}")
        await page.wait_for_selector("tr:has-text('good')")
        await page.get_by_role("link", name="With errors 1").press("Enter")
        await page.wait_for_selector("tr:has-text('good')", state="detached")
        await page.locator("tr:has-text('bad'):has-text('local') a.fault:text-is('1')").click()
        await page.wait_for_url(f"**/change-sets/{ws}/bad?state=error")
        await page.wait_for_selector("tbody tr:has-text('sum')")
        await page.get_by_role("link", name="Overview").click()
        await page.get_by_role("link", name=re.compile(r"^\d+ change sets? with errors$")).click()
        await page.wait_for_selector(f"a[href='/change-sets/{ws}/bad']")


async def test_charts_tell_since_when_they_have_numbers(running: Any, console: WebConsole) -> None:
    async with opened(running) as page:
        await page.goto(console.url)
        line = page.locator("svg[aria-label^='Requests a second since'] .spark-line")
        await line.wait_for(state="attached")
        shown = await page.locator(".under .dim").inner_text()
        assert shown == (await page.locator(".spark").first.get_attribute("aria-label")).removeprefix(
            "Requests a second "
        )
        await page.get_by_role("link", name="30 minutes").press("Enter")
        await page.wait_for_url("**/?span=30")
        await page.wait_for_selector(".chip[aria-current]:has-text('30 minutes')")
        assert (await console.get("/overview?span=30"))["series"]["span"] == 1800
        assert (await console.get("/overview?span=31", 400))["error"]["code"] == "invalid_argument"


async def test_a_page_says_why_it_is_not_live(
    running: Any, console: WebConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = stream.MAX_STREAMS
    monkeypatch.setattr(stream, "MAX_STREAMS", 0)
    async with opened(running) as page:
        await page.goto(console.url)
        await page.wait_for_selector("text=too many live pages are open")
        monkeypatch.setattr(stream, "MAX_STREAMS", most)
        await page.wait_for_selector(".tiles")
        assert await page.get_by_text("too many live pages are open").count() == 0


async def test_a_proxy_that_leaves_no_trace_is_noticed_by_the_page(running: Any, console: WebConsole) -> None:
    """A proxy that forwards everything with the name of the console itself as `Host`, and adds no header."""
    async with opened(running) as page:

        async def forward(route: Any) -> None:
            path = route.request.url.removeprefix("http://console.example.com")
            reply = await console.ask(path)
            await route.fulfill(status=reply.status, headers=dict(reply.headers), body=reply.body)

        await page.route("http://console.example.com/**", forward)
        await page.goto("http://console.example.com/")
        await page.wait_for_selector("text=This console is open to everybody")
        assert await page.locator("[role=alert]").get_by_text("console.example.com").count() == 1
        assert await page.locator(".tiles").count() == 0


async def test_the_keys(running: Any, console: WebConsole) -> None:
    async with opened(running, theme="light") as page:
        await page.goto(console.url)
        await page.wait_for_selector(".tiles")
        background = "getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(background)
        await page.keyboard.press("t")
        assert await page.evaluate(background) != light
        await page.reload()
        await page.wait_for_selector(".tiles")
        assert await page.evaluate(background) != light, "the choice lasts"
        await page.keyboard.press("?")
        await page.wait_for_selector("[role=dialog]")
        assert await page.evaluate("document.activeElement.textContent") == "Close"
        await page.keyboard.press("Escape")
        await page.wait_for_selector("[role=dialog]", state="detached")
        await page.keyboard.press("g")
        await page.keyboard.press("c")
        await page.wait_for_selector("[data-search]")
        await page.wait_for_function("document.activeElement.tagName === 'H1'")  # the focus goes to the new page


async def test_escape_leaves_a_search_as_it_is(running: Any, console: WebConsole) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}/change-sets?q=nothing-has-this-name")
        await page.wait_for_selector("[data-search]")
        await page.keyboard.press("/")
        await page.keyboard.press("Escape")
        assert await page.input_value("[data-search]") == "nothing-has-this-name"
        await page.wait_for_function("document.activeElement.matches('h1')")  # there is no row to go to


async def test_names_never_become_markup(running: Any, console: WebConsole, installation: LocalRebaser) -> None:
    """A program answers pings like a server, with markup in every text that a server may send."""
    texts = dict.fromkeys(("id", "version", "dvu", "durability", "trouble"), HOSTILE)
    hostile = json.dumps({**texts, "owned": 1, "slots": 2, "ready": False, "losses": [HOSTILE]}).encode()
    subjects = Subjects("")

    async def answer_pings(connection: Connection) -> None:
        async with connection.subscribe(subjects.ping) as pings:
            async for ping in pings:
                await connection.publish(str(ping.reply), hostile)

    seen = Seen()
    async with (
        Connection.connect(installation.url) as connection,
        anyio.create_task_group() as group,
        opened(running, seen=seen) as page,
    ):
        group.start_soon(answer_pings, connection)
        await page.goto(console.url)
        await page.wait_for_selector("text=onerror")
        assert await page.locator("main img, main script").count() == 0
        assert "owned" not in await page.title()
        group.cancel_scope.cancel()
    assert seen.complaints == []


async def test_a_search_that_has_not_begun_does_not_bring_the_viewer_back(running: Any, console: WebConsole) -> None:
    async with opened(running) as page:
        await page.goto(f"{console.url}/change-sets")
        await page.wait_for_selector("[data-search]")
        await page.evaluate("""() => {
            const field = document.querySelector("[data-search]");
            field.value = "a";
            field.dispatchEvent(new Event("input", { bubbles: true }));
            document.querySelector("a[href='/branches']").click();
        }""")
        await page.wait_for_selector("h1:has-text('Branches')")
        # The timer of the search began before this one, and is shorter.
        await page.evaluate("new Promise((resolve) => setTimeout(resolve, 250))")
        assert page.url == f"{console.url}/branches"
