"""NATS goes away and comes back while somebody looks: each page says so, and recovers by itself."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from rebaser.console.api import values
from rebaser.console.app import API, RESOURCES
from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Set
from tests.support.browser import Seen, browser, check_page, need_browser, opened
from tests.support.draws import drawing
from tests.support.web_console import WebConsole, web_console

pytestmark = [pytest.mark.anyio]

LOOKS = [("light", "phone"), ("dark", "desk"), ("light", "wall")]
DRAWN = drawing("looks without NATS").choice(LOOKS)
BASE = "/change-sets/shop/main"
# Pages, each with what it shows while NATS is there. The second kind is not shown without.
LIVE = {
    "/": ".tiles",
    "/change-sets": "text=shop/main",
    BASE: "text=price",
    f"{BASE}/commits": "text=edits",
    f"{BASE}/explain": ".reasons >> text=clock_wrong",
}
STILL = {"/dead-letters": "text=There are no dead letters"}


async def store(nats_url: str) -> None:
    """Store a commit in two change sets."""
    async with Connection.connect(nats_url) as connection:
        js, subjects = JetStream(connection), Subjects()
        await ensure_topology(js, subjects, TopologyOptions())
        for name in ("main", "other"):
            commit = Commit(ulid(1, bytes(10)), 0, Kind.REBASE, 1, "a-server", None, None, delta=(Set("price", 41),))
            headers, payload = encode_commit(commit)
            await js.publish(subjects.commits(ChangeSetKey("shop", name)), payload, headers)


@pytest.fixture
async def console(own_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebConsole]:
    monkeypatch.setattr("rebaser.console.live.hub.RECONNECT", 0.1)
    await store(own_nats.url)
    async with web_console(own_nats.url) as running:
        yield running


async def test_nothing_fails_that_is_read_without_nats(own_nats: EmbeddedNats, console: WebConsole) -> None:
    await console.get("/overview")
    await own_nats.kill()
    found: dict[str, tuple[int, str]] = {}

    async def read(path: str) -> None:
        query = "?id=price&at=1&sequence=1&workspace=shop&a=main&b=other"
        reply = await console.ask(API + path.format(workspace="shop", changeSet="main") + query)
        found[path] = reply.status, reply.json().get("error", {}).get("code", "")

    async with anyio.create_task_group() as group:
        for resource in RESOURCES:
            group.start_soon(read, resource.path)
    assert {one for one in found.values() if one[0] != 200} == {(503, "not_connected"), (404, "no_such_playground")}
    told = {path.removeprefix(values.base_path()) for path, (status, _) in found.items() if status == 200}
    assert told == {"/overview", "/change-sets", "", "/explain", "/loading", "/dvu", "/dvu/reasons", "/branches"}


@pytest.mark.parametrize(
    ("theme", "size"), [pytest.param(*one, marks=[] if one == DRAWN else pytest.mark.long) for one in LOOKS]
)
async def test_pages_say_that_nats_is_away_and_recover_by_themselves(
    anyio_backend: str, own_nats: EmbeddedNats, console: WebConsole, theme: str, size: str
) -> None:
    need_browser()
    seen = Seen()
    async with browser() as running, AsyncExitStack() as stack:

        async def page_at(path: str) -> Any:
            """Open a page in a context of its own: those of one context share six connections."""
            page = await stack.enter_async_context(opened(running, theme=theme, size=size, seen=seen))
            await page.goto(console.url + path)
            return page

        stayed = [(await page_at(path), sign) for path, sign in LIVE.items()]
        for page, sign in stayed:
            await page.wait_for_selector(sign)
        await own_nats.kill()
        for page, sign in stayed:
            await page.wait_for_selector("[role=alert]:has-text('Nothing newer since')")
            assert await page.locator(sign).count() > 0, "what was seen before stays on the page"
            await check_page(page)
        come = [(await page_at(path), sign) for path, sign in (LIVE | STILL).items()]
        for page, _ in come:
            await page.wait_for_selector("[role=alert]")
        await own_nats.start()
        for page, sign in stayed + come:
            await page.wait_for_selector(sign)
            await page.wait_for_selector("[role=alert]", state="detached")
    assert [one for one in seen.complaints if "503" not in one] == []
