"""The queue of a change set in a real browser, while no server decides what is in it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.browser import MARKUP, SIZES, Seen, check_page, opened
from tests.support.web_console import web_console

pytestmark = [pytest.mark.anyio]

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
async def url(anyio_backend: str, tmp_path: Path) -> AsyncIterator[str]:
    """NATS without a server of Rebaser: 30 requests wait, and one that is no request."""
    async with embedded_nats(tmp_path) as nats, Connection.connect(nats.url) as connection:
        js, subjects = JetStream(connection), Subjects("")
        await ensure_topology(js, subjects, TopologyOptions())
        traced = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "Nats-Msg-Id": "no-request"}
        await js.publish(subjects.requests(ChangeSetKey("shop", "main")), b"hello", traced)
        async with RebaserClient.connect(nats.url) as client:
            for number in range(30):
                edits = [Set(f"price/{number}", MARKUP)]
                await client.enqueue_updates("shop", "main", edits, author=f"ann {number}", message=MARKUP)
        yield nats.url


@pytest.mark.parametrize("size", SIZES)
async def test_what_waits_is_shown_in_pages_with_its_content_on_demand(running: Any, url: str, size: str) -> None:
    seen = Seen()
    async with (
        web_console(url, trace_url="http://traces/{trace_id}") as console,
        opened(running, size=size, seen=seen) as page,
    ):
        await page.goto(f"{console.url}/change-sets/shop/main/explain")
        await page.get_by_role("link", name="Queue 31").click()
        await page.wait_for_selector("text=unreadable")
        if size != "phone":
            link = page.get_by_role("link", name="trace")
            assert await link.get_attribute("href") == f"http://traces/{TRACE}"
        await page.goto(f"{console.url}/change-sets/shop/main/queue?limit=25")
        await page.wait_for_selector("text=ann 23")
        assert await page.get_by_text("ann 24").count() == 0
        await page.get_by_role("link", name="Next").click()
        await page.wait_for_selector("text=ann 29")
        await page.locator("[data-rows] .row-link").first.click()
        await page.wait_for_selector("pre.block:has-text('price/24')")
        await check_page(page)
        await page.get_by_role("link", name="Close").click()
        await page.wait_for_selector("pre.block", state="detached")
    assert seen.complaints == []


async def test_hidden_values_are_not_shown(running: Any, url: str) -> None:
    async with web_console(url, hide_values=True) as console, opened(running) as page:
        await page.goto(f"{console.url}/change-sets/shop/main/queue?sequence=2")
        await page.wait_for_selector("text=values are hidden")
        await page.wait_for_selector("text=ann 0")
        assert "onerror" not in await page.locator("main").inner_text()


async def test_what_a_change_set_gets_with_its_first_commit_is_shown(running: Any, url: str) -> None:
    async with web_console(url) as console, opened(running) as values, opened(running) as commits:
        await values.goto(f"{console.url}/change-sets/shop/main")
        await values.wait_for_selector("text=There is no such change set")
        await commits.goto(f"{console.url}/change-sets/shop/main/commits")
        await commits.wait_for_selector("text=There is no commit yet")
        async with Connection.connect(url) as connection:
            headers, data = encode_commit(Commit("c1", 0, Kind.REBASE, 1, "s", None, None, delta=(Set("price", 1),)))
            await JetStream(connection).publish(Subjects("").commits(ChangeSetKey("shop", "main")), data, headers)
        await values.wait_for_selector("[data-rows] a:has-text('price')")
        await commits.wait_for_selector("[data-rows] a")
