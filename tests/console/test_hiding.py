"""`--hide-values`: a secret in every field of an installation is in no answer of the API, and on no page."""

import json
import re
from collections.abc import AsyncIterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from rebaser.console import api
from rebaser.console.access.hiding import kind_of, show_values, size_told, told, told_start
from rebaser.console.app import DOWNLOADS, RESOURCES
from rebaser.console.shapes import (
    definition_text,
    fault_object,
    json_start,
    server_object,
    update_line,
    update_object,
)
from rebaser.testing import LocalRebaser
from rebaser_client import Derive, RebaserClient, Set, UnprocessableError
from rebaser_client.admin.servers import ServerInfo, UpdateInfo
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import Fault
from tests.console.test_api_dead_letters import buried
from tests.support.browser import browser, need_browser, opened
from tests.support.commands import rebaser
from tests.support.web_console import WebConsole, web_console

SECRET, NUMBER = "Pa55w0rd", 48151623
MESSAGE = f"the password is {SECRET}"

# What is asked of each resource. `{path}` is the change set, `{branch}` a branch of it.
ASKED: dict[str, list[str]] = {
    "/overview": ["/overview"],
    "/change-sets": ["/change-sets?q={ws}", f"/change-sets?q={SECRET}"],
    "/change-sets/{workspace}/{changeSet}": ["{path}"],
    "/change-sets/{workspace}/{changeSet}/values": [
        "{path}/values",
        *(f"{{path}}/values?state={state}" for state in ("error", "stale", "derived", "set", "unset")),
        f"{{path}}/values?q={SECRET}",
        f"{{path}}/values?q=*{NUMBER}*",
    ],
    "/change-sets/{workspace}/{changeSet}/value": [
        "{path}/value?id=" + id_ for id_ in ("text", "tree", "sum", "fails")
    ],
    "/change-sets/{workspace}/{changeSet}/blame": ["{path}/blame?id=text"],
    "/change-sets/{workspace}/{changeSet}/neighbours": [
        "{path}/neighbours?id=sum",
        "{path}/neighbours?id=text&side=dependents",
    ],
    "/change-sets/{workspace}/{changeSet}/elsewhere": ["{path}/elsewhere?id=text", "{branch}/elsewhere?id=text"],
    "/change-sets/{workspace}/{changeSet}/loading": ["{path}/loading"],
    "/change-sets/{workspace}/{changeSet}/queue": ["{path}/queue"],  # test_api_queue.py asks about requests that wait
    "/change-sets/{workspace}/{changeSet}/queued": [],
    "/change-sets/{workspace}/{changeSet}/history": ["{path}/history?id=text", "{path}/history?id=sum"],
    "/change-sets/{workspace}/{changeSet}/graph": ["{path}/graph?id=text", "{path}/graph?id=fails"],
    "/change-sets/{workspace}/{changeSet}/commits": ["{path}/commits", "{branch}/commits"],
    "/change-sets/{workspace}/{changeSet}/commit": ["{path}/commit", "{path}/commit?at={first}", "{branch}/commit"],
    "/change-sets/{workspace}/{changeSet}/explain": ["{path}/explain"],
    "/change-sets/{workspace}/{changeSet}/history-size": ["{path}/history-size"],
    "/change-sets/{workspace}/{changeSet}/changes": ["{branch}/changes?derived=yes"],
    "/change-sets/{workspace}/{changeSet}/conflicts": ["{branch}/conflicts"],
    "/change-sets/{workspace}/{changeSet}/updates": ["{path}/updates"],
    "/branches": ["/branches?q={ws}"],
    "/compare": ["/compare?workspace={ws}&a=main&b=draft"],
    "/dvu": ["/dvu"],
    "/dvu/reasons": ["/dvu/reasons"],
    "/playground/check": ["/playground/check?workspace={ws}&changeSet=main&formula=1"],
    "/playground/covered": ["/playground/covered?workspace={ws}&changeSet=main&commit={first}"],
    "/dead-letters/codes": ["/dead-letters/codes?workspace={ws}"],
    "/dead-letters": ["/dead-letters?workspace={ws}"],
    "/dead-letter": ["/dead-letter?sequence={letter}", "/dead-letter?sequence={bytes}"],
}
QUOTING = {  # those that tell the secret if values are shown
    "/change-sets/{workspace}/{changeSet}" + page
    for page in (
        *("/values", "/value", "/blame", "/neighbours", "/elsewhere", "/history", "/graph", "/commits", "/commit"),
        *("/changes", "/conflicts"),
    )
} | {"/dead-letter", "/compare"}


@pytest.fixture
async def secrets(anyio_backend: str, installation: LocalRebaser, client: RebaserClient, ws: str) -> dict[str, str]:
    """Fill a workspace with secrets; return the parts of the addresses in `ASKED`."""
    say: dict[str, Any] = {"wait": "derived", "message": MESSAGE}
    edits: list[Set | Derive] = [
        Set("text", SECRET),
        Set("number", NUMBER),
        Set("tree", {SECRET: [SECRET, {"a": NUMBER}]}),
        Derive("sum", "cel", {"n": "number"}, {"expr": f"n + {NUMBER}"}),
        Derive("copy", "cel", {"t": "text"}, {"expr": f"t + '{SECRET}'"}),
        Derive("fails", "cel", {"t": "text"}, {"expr": "{'a': 1}[t]"}),
        Derive("after", "cel", {"f": "fails"}, {"expr": f"f + {NUMBER}"}),
    ]
    first = await client.enqueue_updates_with_reply(ws, "main", edits, **say)
    await client.create_branch(ws, "draft")
    await client.enqueue_updates_with_reply(ws, "draft", [Set("text", f"{SECRET} of the branch")], **say)
    await client.enqueue_updates_with_reply(ws, "main", [Set("text", f"{SECRET} of the target")], **say)
    await client.rebase(ws, "draft")
    await client.enqueue_updates_with_reply(ws, "twice", [Set("a", SECRET)], request_id="once", message=MESSAGE)
    await client.enqueue_updates(ws, "twice", [Set("a", NUMBER)], request_id="once", message=MESSAGE)
    [letter] = await buried(client, ws, 1)
    key, headers = ChangeSetKey(ws, "twice"), {"X-Hello": SECRET}
    async with Connection.connect(installation.url) as connection:
        await JetStream(connection).publish(Subjects("").requests(key), SECRET.encode(), headers)
    await client.enqueue_updates_with_reply(ws, "twice", [Set("b", 1)])
    letters = await buried(client, ws, 2)
    return {
        "ws": ws,
        "path": f"/change-sets/{ws}/main",
        "branch": f"/change-sets/{ws}/draft",
        "first": str(first.status.commit),
        "letter": str(letter.sequence),
        "bytes": str(letters[-1].sequence),
    }


@pytest.fixture
async def hidden(anyio_backend: str, installation: LocalRebaser) -> AsyncIterator[WebConsole]:
    async with web_console(installation.url, hide_values=True) as running:
        yield running


def leaks(text: str) -> list[str]:
    return [text[max(0, at.start() - 80) : at.end()] for at in re.finditer(f"{SECRET}|{NUMBER}|{2 * NUMBER}", text)]


@pytest.mark.anyio
async def test_no_answer_tells_a_value(console: WebConsole, hidden: WebConsole, secrets: dict[str, str]) -> None:
    assert {resource.path for resource in RESOURCES} == set(ASKED), "say here what is asked of a new resource"
    quoting = set()
    for resource in RESOURCES:
        for template in ASKED[resource.path]:
            path = template.format(**secrets)
            if leaks((await console.ask(f"/api/v1{path}")).body.decode()):
                quoting.add(resource.path)
            reply = await hidden.ask(f"/api/v1{path}")
            assert leaks(reply.body.decode()) == [], path
            assert reply.status == (404 if "playground" in path else 200), path
            if resource.live:
                async with hidden.live(path) as live:
                    assert leaks(json.dumps(await live.next())) == [], path
    assert quoting == QUOTING


@pytest.mark.anyio
async def test_no_file_tells_a_value(console: WebConsole, hidden: WebConsole, secrets: dict[str, str]) -> None:
    table, definitions = f"/change-sets.csv?q={secrets['ws']}", f"{secrets['path']}/values.jsonl"
    assert {one.path for one in DOWNLOADS} == {"/change-sets.csv", "/change-sets/{workspace}/{changeSet}/values.jsonl"}
    assert leaks((await console.ask(f"/api/v1{definitions}")).body.decode()) != []
    assert (await hidden.get(definitions, 400))["error"] == {
        "code": "values_hidden",
        "message": "this console hides values: it was started with --hide-values",
        "details": [],
    }
    reply = await hidden.ask(f"/api/v1{table}")
    assert (reply.status, leaks(reply.body.decode())) == (200, [])


@pytest.mark.anyio
async def test_kinds_and_sizes_are_told(hidden: WebConsole, secrets: dict[str, str]) -> None:
    path = secrets["path"]
    rows = {row["id"]: row for row in (await hidden.get(f"{path}/values"))["rows"]}
    assert rows["text"]["text"] == "text, 22 characters"
    assert rows["number"]["text"] == rows["sum"]["text"] == "number"
    assert rows["tree"]["text"] == "object, 1 field"
    assert rows["fails"]["error"]["code"] == "failed"
    assert rows["sum"]["definition"] == '= cel {"n": "number"} {"expr": "formula"}'
    one = await hidden.get(f"{path}/value?id=fails")
    assert one["why"] == "It fails by itself: (hidden)", "the length of a message tells that of a number in it"
    letter = await hidden.get(f"/dead-letter?sequence={secrets['letter']}")
    assert (letter["code"], letter["payload"]["text"]) == ("request_id_reused", "")
    assert letter["payload"]["length"] > 0
    assert letter["payload"]["length"] % 1024 == 0, "exact bytes would tell the length of a number"


@pytest.mark.anyio
async def test_no_page_shows_a_value(hidden: WebConsole, secrets: dict[str, str]) -> None:
    need_browser()
    path, branch = secrets["path"], secrets["branch"]
    below = ("", "/value?id=text", "/value?id=fails", "/graph?id=fails", "/commits", f"/commit?at={secrets['first']}")
    pages = [f"{path}{one}" for one in below]
    pages += [f"{branch}/changes?derived=yes", f"{branch}/conflicts"]
    pages += [
        "/dvu",
        f"{path}/updates",
        f"/compare?workspace={secrets['ws']}&a=main&b=draft",
        "/dead-letters",
        f"/dead-letters/letter?sequence={secrets['bytes']}",
    ]
    async with browser() as running, opened(running) as page:
        for one in pages:
            await page.goto(hidden.url + one)
            await page.wait_for_selector("h1")
            await page.wait_for_selector(".loading", state="detached")
            assert leaks(await page.content()) == [], one
            assert await page.get_by_text("values hidden").count() == 1
            assert await page.get_by_role("link", name="Download as JSON Lines").count() == 0


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "truth value"),
        (False, "truth value"),
        (1, "number"),
        (10**9, "number"),
        (-0.5, "number"),
        ("", "text, 0 characters"),
        ("x", "text, 1 character"),
        ([1, 2], "list, 2 items"),
        ({SECRET: 1}, "object, 1 field"),
    ],
)
def test_the_kind_of_a_value(value: object, kind: str) -> None:
    assert kind_of(value) == kind


def test_values_are_hidden_from_code_that_says_nothing() -> None:
    def check() -> None:
        assert json_start(SECRET, 100) == "text, 8 characters"
        assert definition_text(Set("a", SECRET)) == "text, 8 characters"
        assert SECRET not in str(fault_object(Fault("failed", MESSAGE, "a")))
        assert told("") == ""
        with pytest.raises(UnprocessableError, match="hides values"):
            update_line(Set("a", SECRET))
        assert told(SECRET) == "(hidden)"
        assert told_start("a: b: c") == "a: (hidden)"
        assert [size_told(size) for size in (0, 1, 1024, 1025)] == [0, 1024, 1024, 2048]
        show_values(True)
        assert (told(SECRET), told_start("a: b: c"), json_start(SECRET, 100)) == (SECRET, "a: b: c", f'"{SECRET}"')

    Context().run(check)


def test_a_server_tells_nothing_where_words_are_known() -> None:
    """What answers a ping may be no server of ours; the texts of a stage, a plan and a wave are not hidden."""
    known = [UpdateInfo("ws", "cs", 1, 2, 3.0, "spark", plan, 4) for plan in ("", "packets", "full graph")]
    assert [(one["stage"], one["plan"], one["wave"]) for one in map(update_object, known)] == [
        ("spark", "", 4), ("spark", "packets", 4), ("spark", "full graph", 4),
    ]  # fmt: skip
    others: tuple[Any, ...] = (SECRET, [SECRET], {SECRET: 1}, None, True, 1.5)
    for other in others:
        told_of = update_object(UpdateInfo("ws", "cs", 1, 2, 3.0, other, other, other, other))
        assert all(told_of[name] is None for name in ("stage", "plan", "wave", "sparkTag")), other


def test_progress_consists_of_numbers() -> None:
    others: tuple[Any, ...] = (SECRET, [SECRET], {SECRET: 1}, None, True)
    for other in others:
        told_of = update_object(UpdateInfo("ws", "cs", other, other, other))
        assert (told_of["done"], told_of["total"], told_of["seconds"]) == (0, None, 0.0), other


def test_why_spark_is_down_may_quote_a_value() -> None:
    server = ServerInfo("s1", "1.0", 0, 1, f"down: cannot compute {SECRET}")

    def check() -> None:
        assert server_object(server)["dvu"] == "down: (hidden)"
        show_values(True)
        assert SECRET in server_object(server)["dvu"]

    Context().run(check)


def test_only_shapes_makes_json_of_values() -> None:
    modules = list(Path(api.__file__).parent.glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        text = module.read_text().replace("Recompute(function).to_wire()", "")  # it has no value
        found = re.findall(r"json\.dumps|\bdumps\(|to_wire\(|json_text\(|\brepr\(", text)
        assert found == [], f"{module.name} makes JSON by itself: let `shapes` do it, which hides values"


@pytest.mark.anyio
async def test_it_excludes_actions() -> None:
    done = await rebaser("console", "--http", ":0", "--hide-values", "--actions")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--hide-values excludes --actions" in " ".join(done.stderr.split())
