"""The table in deploy/docs/accounts.md of the commands that each user can run: they all run, and all other commands are
refused at once."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import anyio
import pytest
from typer.main import get_group

from rebaser.cli.app import app
from rebaser.cli.connect import client_for
from rebaser.console import server
from rebaser.console.access.options import ConsoleOptions, accepted_hosts
from rebaser.ops.address import listen
from rebaser_client import Derive, RebaserClient, Set, Success
from rebaser_client.blobs import open_collectable
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.accounts import FILE, USERS, installation_with_accounts, settings, settings_of
from tests.support.commands import rebaser
from tests.support.fleet import NO_SPARK, launched
from tests.support.garbage import Collectors
from tests.support.web_console import ACTING, WebConsole

pytestmark = pytest.mark.anyio

GUIDE = FILE.parent / "docs" / "accounts.md"
EDIT = "enqueue shop main --set a=2 --author ann"
ALONE = {"dev", "demo", "functions"}  # commands that need no NATS server, or start their own

# The commands as the table names them, in an order in which each finds what it needs. Of two commands that differ only
# here, the second needs more permissions.
COMMANDS = {
    "enqueue": EDIT,
    "enqueue --wait derived": f"{EDIT} --wait derived",
    "get": "get shop main",
    "log": "log shop main",
    "show": "show shop main",
    "blame": "blame shop main a",
    "diff": "diff shop draft --derived",
    "branches": "branches shop",
    "conflicts": "conflicts shop draft",
    "list": "list shop",
    "tail": "tail shop",
    "status": "status",
    "top": "top --once --interval 1",
    "explain": "explain shop main",
    "ping": "ping --timeout 60",
    "functions --servers": "functions --servers",
    "dlq list": "dlq list",
    "dlq show": "dlq show",
    "doctor WS CS": "doctor shop main",
    "recompute": "recompute shop main",
    "undo": "undo shop main --author ann --yes",
    "redo": "redo shop main --author ann --yes",
    "revert": "revert shop main {edit}",
    "branch": "branch shop other",
    "rebase": "rebase shop draft",
    "resolve": "resolve shop draft --all --take main",
    "apply": "apply shop ready --yes",
    "protect": "protect shop main",
    "close": "close shop last",
    "reopen": "reopen shop last",
    "delete": "delete shop last --yes",
    "bench": "bench --requests 20 --derived 2 --change-sets 1",
    "doctor": "doctor",
    "init": "init --sweep-interval 0.5 --ack-wait 7",
    "dlq redrive": "dlq redrive --all --yes",
    "dlq drop": "dlq drop --all --yes",
    "doctor --repair": "doctor shop damaged --repair --yes",
    "gc": "gc",
}
RUNNING = ("serve", "console", "console --actions")  # commands that run until they are stopped: tests of their own
REFUSED = re.compile(r"NATS does not allow this user to (publish|subscribe) to [$_\w.*>-]+: grant this permission")
OF_A_SERVER = "these are the settings of a server; use those of another user"


def allowed() -> dict[str, set[str]]:
    """Return the commands of each user in the table of the guide."""
    text = GUIDE.read_text().split("## Which commands each user can run")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    found: dict[str, set[str]] = {}
    for user, cell in rows.items():
        found[user] = set(re.findall("`(.*?)`", cell))
        if cell.startswith("all of these"):
            found[user] |= found[list(found)[-2]]
    return found


def test_the_table_names_all_users_and_all_commands() -> None:
    table = allowed()
    assert set(table) == set(USERS)
    named = set.union(*table.values())
    # The text below the table says that an app cannot wait for derived values.
    assert named == {*COMMANDS, *RUNNING} - {"enqueue --wait derived"}
    commands = {name.split(" ")[0] for name in named}
    assert commands | ALONE == set(get_group(app).commands)


def test_the_rows_of_the_table_build_on_each_other() -> None:
    table = allowed()
    assert table["reader"] < table["editor"] < table["operator"]


@pytest.fixture
async def url(tmp_path: Path, unused_port: int) -> AsyncIterator[str]:
    async with installation_with_accounts(tmp_path, unused_port, server_id="one") as url:
        yield url


async def run(user: str, url: str, words: str) -> CompletedProcess[str]:
    given: Any = settings_of(user, create_streams="false", sweep_interval="0.5")
    return await rebaser(*words.split(), nats_url=url, spark=NO_SPARK, **given)


async def prepare(url: str) -> int:
    """Give each command something to do, and return the log sequence of an edit that can be reverted."""
    given = settings("operator", url)
    derived = Derive("b", "cel", {"a": "a"}, {"expr": "a + 1"})
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        client = await enter(RebaserClient.connect(url, inbox_prefix=given.inbox_prefix, **given.access()))
        js = JetStream(await enter(Connection.connect(url, inbox_prefix=given.inbox_prefix, **given.access())))
        await client.enqueue_updates_with_reply("shop", "main", [Set("a", 1), derived], wait="derived")
        for name in ("draft", "last"):
            await client.create_branch("shop", name, follow="manual")
        await client.enqueue_updates_with_reply("shop", "draft", [Set("a", 5)])
        last = await client.enqueue_updates_with_reply("shop", "main", [Set("e", 1)])
        await client.enqueue_updates_with_reply("shop", "main", [Set("a", 6)], author="ann")
        await client.enqueue_updates_with_reply("shop", "main", [Set("c", 1)], author="ann")
        await client.rebase("shop", "draft")
        await client.create_branch("shop", "ready", follow="manual")
        await client.enqueue_updates_with_reply("shop", "ready", [Set("d", 5)])
        await js.publish("rebaser.requests.shop.odd", b"odd")
        await js.publish("rebaser.tasks.shop.odd.process", b"")
        commit = await js.last("REBASER_COMMITS", "rebaser.commits.shop.main")
        assert commit is not None
        ours = {name: text for name, text in commit.headers.items() if not name.startswith("Nats-")}
        await js.publish("rebaser.commits.shop.damaged", commit.data[:-3], ours)
        with anyio.fail_after(60):
            while await js.last("REBASER_DLQ", "rebaser.dlq.shop.odd") is None:  # noqa: ASYNC110 - the server moves it
                await anyio.sleep(0.02)
    undone = await run("operator", url, "undo shop main --author ann --yes")
    assert undone.returncode == 0, undone.stderr
    assert isinstance(last.status, Success)
    return last.status.commit or 0


def ran(name: str, done: CompletedProcess[str]) -> bool:
    """Return whether NATS allowed the command to do its work."""
    if name == "gc":  # NATS allowed everything up to the start of Spark, which this test does not have
        return done.returncode == 1 and "a session with Spark cannot be opened" in done.stderr
    if name == "doctor":  # the missing Spark is a failure, too
        return "rights\tok" in done.stdout
    return done.returncode == 0


def was_refused(name: str, done: CompletedProcess[str], user: str) -> bool:
    if name == "doctor":
        rights = re.search(r"^rights\tfailed\t.*publish to ", done.stdout, re.MULTILINE)
        return done.returncode == 1 and rights is not None
    if done.returncode != 1 or "Traceback" in done.stderr:
        return False
    return REFUSED.search(done.stderr) is not None or (user == "server" and OF_A_SERVER in done.stderr)


@pytest.mark.parametrize("user", USERS)
async def test_the_commands_in_the_table_run_and_all_others_are_refused_at_once(user: str, url: str) -> None:
    """The bound on a command is a minute in the client, so a command that waited for an answer would fail
    differently."""
    edit = str(await prepare(url))
    wrong = []
    for name, words in COMMANDS.items():
        done = await run(user, url, words.format(edit=edit))
        may = name in allowed()[user] or (name == "enqueue --wait derived" and user in ("editor", "operator"))
        if not (ran(name, done) if may else was_refused(name, done, user)):
            said = f"{done.returncode} {done.stderr or done.stdout}"
            wrong.append(f"{name}, which {user} {'may' if may else 'may not'} run: {said}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("user", USERS)
async def test_only_the_user_server_can_run_a_server(user: str, url: str) -> None:
    given: Any = settings_of(user, create_streams="false", sweep_interval="0.5")
    if user == "server":
        async with launched(url, "two", spark=NO_SPARK, **given) as running:
            await running.wait_for("server_ready")
    else:
        assert "serve" not in allowed()[user]
        done = await run(user, url, "serve")
        assert was_refused("serve", done, user), done


@pytest.mark.parametrize("user", ["operator", "editor", "reader", "app"])
async def test_a_console_reads_as_a_reader_and_acts_as_an_editor(user: str, url: str) -> None:
    """A console starts whatever its user may do; each answer says what NATS refuses."""
    await prepare(url)
    given = settings(user, url)

    def connect() -> AbstractAsyncContextManager[RebaserClient]:
        return client_for(given)

    with closing(await listen("127.0.0.1:0")) as listener:
        port = listener.getsockname()[1]
        options = ConsoleOptions(accepted_hosts("127.0.0.1", port, ()), actions=True)
        async with server.console(connect, listener, options, "test"):
            console = WebConsole(port)
            path = "/change-sets/shop/last/close"
            if "console" in allowed()[user]:
                assert (await console.get("/change-sets/shop/main"))["problem"] == ""
            else:
                reply = await console.ask("/api/v1/change-sets/shop/main")
                assert "NATS does not allow" in reply.body.decode(), reply
            if "console --actions" in allowed()[user]:
                await console.act(path, {"author": "ann"})
            elif user == "reader":
                body = json.dumps({"author": "ann"}).encode()
                reply = await console.ask(f"/api/v1{path}", method="POST", headers=ACTING, body=body)
                assert "NATS does not allow" in reply.body.decode(), reply


async def test_the_operator_may_collect_garbage(url: str) -> None:
    """Without Spark, which the command needs for its queries."""
    given = settings("operator", url)
    async with Connection.connect(url, inbox_prefix=given.inbox_prefix, **given.access()) as connection:
        js, subjects = JetStream(connection), Subjects()
        runs = Collectors(js, subjects, open_collectable(None, js, subjects.blobs_bucket))
        blob = await runs.blobs.put(b"needed by nothing")
        await runs.rest()
        assert blob not in await runs.stored()
