"""Files to download, from a real installation and in a real browser: what is in them, how they are named, and that
they are sent in parts."""

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest
from starlette.requests import Request

from rebaser.console import app, downloads
from rebaser.console.access.hiding import show_values
from rebaser.console.downloads import csv_lines, definitions, safe_name
from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Console, Document, Download, Given
from rebaser_client import Derive, RebaserClient, Set, UnprocessableError
from rebaser_core.updates import parse_update
from tests.conftest import Events
from tests.support.browser import browser, need_browser, opened
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

HOSTILE = '=HYPERLINK("http://x";"<b>")'
EDITS = [Set("a/price", 2), Set("a/name", HOSTILE), Set("b/é", {"x": [1.5, None]}), Set("b/not", "a number")]
FORMULAS = [Derive("total", "sum", {"of": ["a/price"]}), Derive("bad", "sum", {"of": ["b/not"]})]


@pytest.fixture
async def shop(client: RebaserClient, ws: str) -> str:
    await client.enqueue_updates_with_reply(ws, "main", [*EDITS, *FORMULAS], wait="derived")
    return f"/api/v1/change-sets/{ws}/main/values.jsonl"


def unchunked(body: bytes) -> bytes:
    """The content of an answer that was sent in chunks."""
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found, body = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


async def lines(console: WebConsole, path: str) -> list[Any]:
    reply = await console.ask(path)
    assert reply.status == 200, reply.body
    return [json.loads(line) for line in unchunked(reply.body).splitlines()]


async def test_definitions_make_the_same_change_set_again(
    console: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    found = await lines(console, shop)
    assert [line["id"] for line in found] == ["a/name", "a/price", "b/not", "b/é", "bad", "total"]
    await client.enqueue_updates_with_reply(ws, "copy", [parse_update(line) for line in found], wait="derived")
    one, two = [await client.values(ws, name) for name in ("main", "copy")]
    assert dict(one) == dict(two)
    assert [line["id"] for line in await lines(console, f"{shop}?prefix=a/")] == ["a/name", "a/price"]
    assert [line["id"] for line in await lines(console, f"{shop}?state=error")] == ["bad"]
    assert [line["id"] for line in await lines(console, f"{shop}?q=*/n*")] == ["a/name", "b/not"]
    assert await lines(console, f"{shop}?q=nothing") == []


async def test_names_and_errors(console: WebConsole, ws: str, shop: str) -> None:
    headers = (await console.ask(shop)).headers
    assert headers["content-disposition"].startswith(f'attachment; filename="{ws}-main-')
    assert headers["content-disposition"].endswith('.jsonl"')
    assert (headers["content-type"], headers["x-content-type-options"]) == ("application/jsonl", "nosniff")
    missing = await console.ask(shop.replace("main", "none"))
    assert (missing.status, missing.json()["error"]["code"]) == (404, "no_such_change_set")
    assert (await console.ask(f"{shop}?state=none")).status == 400
    assert (await console.ask(shop, headers={"sec-fetch-site": "cross-site"})).status == 403


async def test_the_table_of_change_sets(console: WebConsole, client: RebaserClient, ws: str, shop: str) -> None:
    await client.create_branch(ws, "-1-1")  # what a spreadsheet would compute
    await client.enqueue_updates_with_reply(ws, "-1-1", [Set("a/price", 3)])
    async with console.live(f"/change-sets?q={ws}") as live:
        while not any(row["changes"] for row in (await live.next())[1]["rows"] if row["target"]):
            pass
    reply = await console.ask(f"/api/v1/change-sets.csv?q={ws}&state=all")
    assert reply.headers["content-disposition"] == 'attachment; filename="change-sets.csv"'
    rows = list(csv.DictReader(io.StringIO(unchunked(reply.body).decode(), newline="")))
    assert [(row["workspace"], row["change set"], row["branch of"], row["changes"]) for row in rows] == [
        (ws, "'-1-1", "main", "1"),
        (ws, "main", "", "0"),
    ]
    assert {row["protected"] for row in rows} == {"no"}
    assert {(row["values in error"], row["last server"]) for row in rows} == {("1", "local")}
    assert len(unchunked((await console.ask(f"/api/v1/change-sets.csv?q={ws}&state=closed")).body).splitlines()) == 1


def test_no_cell_is_a_formula() -> None:
    cells = [HOSTILE, "+1", "-1", "@x", "\t=1", " =1", "\uff1d1", "\n=1", "a=1", -1, 2.5, None, True, 'say "a", b', ""]
    [row] = csv.reader(io.StringIO(csv_lines([cells]).decode(), newline=""))
    assert row[:8] == [f"'{cell}" for cell in cells[:8]]
    assert row[8:] == ["a=1", "-1", "2.5", "", "yes", 'say "a", b', ""]
    assert csv_lines([["\ud800"]]) == b"?\r\n"


def test_a_name_is_safe_in_a_header_and_in_a_folder() -> None:
    assert safe_name('../..\\a"b\r\nset-cookie: x.jsonl') == "a-b-set-cookie-x.jsonl"
    assert safe_name("é...") == "download"
    assert len(safe_name("a" * 1000)) == downloads.MAX_NAME


async def test_a_file_is_sent_in_parts(client: RebaserClient, ws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PART", 100)
    await client.enqueue_updates_with_reply(ws, "main", [Set(f"v{number:03}", "x" * 40) for number in range(50)])
    loaded = BrowsedState(await client.state(ws, "main"))
    show_values(True)
    try:
        parts = [part async for part in definitions(loaded, loaded.ids)]
    finally:
        show_values(False)
    assert len(parts) == 25
    assert all(part.endswith(b"\n") for part in parts)
    assert len(b"".join(parts).splitlines()) == 50


async def test_there_are_not_too_many_at_a_time(
    console: WebConsole, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MAX_DOWNLOADS", 0)
    refused = await console.ask(shop)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "too_many")


async def test_a_download_that_fails_ends_early_and_makes_room(events: Events) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("broken")

    async def read(_: Console, __: Given) -> Document:
        return Document("x.csv", "text/csv", parts())

    running, sent = downloads.Downloads(), list[Any]()
    with pytest.raises(Exception):  # noqa: B017, PT011 - uvicorn ends the connection after any
        await downloading(running, read, sent)
    assert [message.get("more_body") for message in sent] == [None, True], "the end is missing"
    assert (running._open, len(events.named("http_failed"))) == (0, 1)


async def downloading(
    running: downloads.Downloads, read: Any, sent: list[Any], gone: anyio.Event | None = None
) -> None:
    """Answer a request for what `read` returns, whose client disconnects when `gone` is set."""

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await (gone or anyio.Event()).wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET", "path": "/x", "headers": []}
    request = Request({**scope, "path_params": {}, "query_string": b""}, receive)
    respond = await app._downloading(cast("Console", None), Download("/x", read), running)(request)
    await respond(request.scope, receive, send)


async def test_a_download_counts_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MAX_DOWNLOADS", 2)
    gone, read_on = anyio.Event(), anyio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"all"

    async def read(_: Console, __: Given) -> Document:
        await read_on.wait()
        return Document("x.csv", "text/csv", parts())

    async def broken(_: Console, __: Given) -> Document:
        raise UnprocessableError("no", code="no_such_change_set")

    running, first, second, refused, failed = downloads.Downloads(), *(list[Any]() for _ in range(4))
    async with anyio.create_task_group() as group:
        group.start_soon(downloading, running, read, first, gone)
        group.start_soon(downloading, running, read, second)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await downloading(running, read, refused)
        assert [message.get("status") for message in refused] == [503, None]
        gone.set()
        await anyio.wait_all_tasks_blocked()
        assert (running._open, first[0]["status"]) == (1, 503), "who goes away makes room"
        await downloading(running, broken, failed)
        assert (running._open, failed[0]["status"]) == (1, 404)
        read_on.set()
    assert (running._open, second[0]["status"], second[1]["body"]) == (0, 200, b"all")


async def test_a_browser_downloads_what_its_page_shows(
    anyio_backend: str, console: WebConsole, ws: str, shop: str
) -> None:
    need_browser()
    async with browser() as running, opened(running) as page:
        await page.goto(f"{console.url}/change-sets/{ws}/main?state=error")
        async with page.expect_download() as waiting:
            await page.get_by_role("link", name="Download as JSON Lines").press("Enter")
        done = await waiting.value
        assert done.suggested_filename.startswith(f"{ws}-main-")
        path = anyio.Path(await done.path())
        assert [json.loads(line)["id"] for line in (await path.read_text()).splitlines()] == ["bad"]
        await page.goto(f"{console.url}/change-sets?q={ws}")
        async with page.expect_download() as waiting:
            await page.get_by_role("link", name="Download as CSV").click()
        done = await waiting.value
        assert done.suggested_filename == "change-sets.csv"
        assert len((await anyio.Path(await done.path()).read_text()).splitlines()) == 2
