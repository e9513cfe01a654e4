"""deploy/accounts.conf: what each user can do with the client, and what no user can reach."""

import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser_client import Derive, NotAllowed, RebaserClient, Set, Update
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.admin.servers import ping
from rebaser_client.jetstream import Connection, JetStream, NoRespondersError
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.conftest import Events
from tests.support.accounts import (
    FILE,
    OUTSIDE,
    USERS,
    WITHOUT_PERMISSIONS,
    installation_with_accounts,
    rights,
    settings,
)

pytestmark = pytest.mark.anyio

EDITS: list[Update] = [Set("a", 1), Derive("b", "cel", {"a": "a"}, {"expr": "a + 1"})]
GUIDE = FILE.parent / "docs" / "accounts.md"
STREAMS = ("REBASER_REQUESTS", "REBASER_TASKS", "REBASER_COMMITS", "REBASER_DLQ", "REBASER_SWEEP", "OBJ_REBASER_BLOBS")


@pytest.fixture
async def url(tmp_path: Path, unused_port: int) -> AsyncIterator[str]:
    async with installation_with_accounts(tmp_path, unused_port, history_for="0") as url:
        yield url


@asynccontextmanager
async def connected(user: str, url: str) -> AsyncIterator[Connection]:
    given = settings(user, url)
    async with Connection.connect(url, inbox_prefix=given.inbox_prefix, **given.access()) as connection:
        yield connection


@asynccontextmanager
async def client_of(user: str, url: str) -> AsyncIterator[RebaserClient]:
    given = settings(user, url)
    async with RebaserClient.connect(url, inbox_prefix=given.inbox_prefix, **given.access()) as client:
        yield client


async def contents(url: str) -> dict[str, tuple[int, int]]:
    """Return the number of messages of each stream, and its last sequence."""
    async with connected(f"{WITHOUT_PERMISSIONS}server", url) as connection:
        js = JetStream(connection)
        infos = [await js.stream_info(name) for name in STREAMS]
    return {info.config["name"]: (info.messages, info.last_sequence) for info in infos}


async def settled(url: str) -> dict[str, tuple[int, int]]:
    """Return the contents once nothing changes them any more: the server has released its change sets."""
    before, now = None, await contents(url)
    with anyio.fail_after(60):
        while now != before or now["REBASER_TASKS"][0] or now["REBASER_REQUESTS"][0]:
            await anyio.sleep(1.0)
            before, now = now, await contents(url)
    return now


async def test_each_user_can_do_what_it_is_for(url: str, events: Events) -> None:
    large: list[Update] = [Set(f"v/{number}", "x" * 1000) for number in range(3000)]
    async with client_of("app", url) as app, client_of("editor", url) as editor, client_of("reader", url) as reader:
        answer = await app.enqueue_updates_with_reply("shop", "main", EDITS)
        assert answer.id
        for _ in range(2):  # two edits, so that one checkpoint replaces another
            await editor.enqueue_updates_with_reply("shop", "main", large, wait="derived")
        values = await reader.values("shop", "main")
        assert values["b"].value == 2
        assert values["v/2999"].value == "x" * 1000
        while not (await reader.status()).servers:
            pass  # the server did not answer soon
        async with aclosing(reader.watch("shop", "main", after=0)) as commits:
            assert (await anext(commits)).sequence
        for user in ("operator", "editor", "reader"):
            async with client_of(user, url) as client, client.fleet() as fleet:
                assert (await client.explain("shop", "main")).facts.log is not None
                assert (await client.explain_value("shop", "main", "b")) is not None
                while not (view := await fleet.look(ChangeSetKey("shop", "main"))).servers:
                    pass
                assert (len(view.servers), view.total) == (1, 1)
                assert view.tasks is not None
                assert view.servers[0].about is not None
    assert not events.named("nats_not_allowed")


API = "$JS.API"
OURS = "$JS.rebaser.API"  # the prefix of the API in accounts that import it
FORBIDDEN = {
    "app": [
        "rebaser.requests.other.main", "rebaser.tasks.other.main.process", "rebaser.commits.shop.main",
        "rebaser.dlq.shop.main", "rebaser.sweep", "rebaser.progress.shop.main", "rebaser.servers.ping",
        "_INBOX.clients.app.x", "_INBOX.server.x", "_INBOX.clients.reader.x", "$O.REBASER_BLOBS.C.x",
        f"{API}.STREAM.INFO.REBASER_COMMITS", f"{API}.STREAM.MSG.GET.REBASER_COMMITS",
        f"{API}.CONSUMER.CREATE.REBASER_COMMITS.x", f"{API}.STREAM.NAMES", f"{API}.INFO",
        f"{OURS}.STREAM.MSG.GET.REBASER_COMMITS", "$JS.ACK.REBASER_TASKS.rebaser-tasks.1.1.1.1.0",
        "$SYS.REQ.SERVER.PING",
    ],
    "reader": [
        "rebaser.requests.shop.main", "rebaser.tasks.shop.main.process", "rebaser.commits.shop.main",
        "_INBOX.server.x", "_INBOX.clients.editor.x", "$O.REBASER_BLOBS.M.x",
        f"{OURS}.STREAM.PURGE.REBASER_COMMITS", f"{OURS}.STREAM.DELETE.REBASER_COMMITS",
        f"{OURS}.STREAM.UPDATE.REBASER_COMMITS", f"{OURS}.STREAM.MSG.DELETE.REBASER_REQUESTS",
        f"{OURS}.STREAM.MSG.DELETE.REBASER_DLQ",
        f"{OURS}.CONSUMER.CREATE.REBASER_TASKS.x", f"{OURS}.CONSUMER.MSG.NEXT.REBASER_TASKS.rebaser-tasks",
        f"{OURS}.CONSUMER.DELETE.REBASER_TASKS.rebaser-tasks", f"{OURS}.STREAM.INFO.OTHER",
        f"{API}.STREAM.MSG.GET.REBASER_COMMITS", "$JS.ACK.REBASER_TASKS.rebaser-tasks.1.1.1.1.0",
    ],
    "editor": [
        "rebaser.commits.shop.main", "rebaser.dlq.shop.main", "_INBOX.server.x", "rebaser.progress.shop.main",
        f"{OURS}.STREAM.PURGE.REBASER_COMMITS", f"{OURS}.STREAM.MSG.DELETE.REBASER_DLQ",
        f"{OURS}.CONSUMER.CREATE.REBASER_SWEEP.x", f"{OURS}.STREAM.UPDATE.REBASER_REQUESTS",
    ],
    "server": [
        f"{API}.STREAM.CREATE.REBASER_COMMITS", f"{API}.STREAM.UPDATE.REBASER_COMMITS",
        f"{API}.STREAM.DELETE.REBASER_COMMITS", f"{API}.CONSUMER.CREATE.REBASER_TASKS.rebaser-tasks.x",
        f"{API}.STREAM.CREATE.OTHER", "_INBOX.server.x",
    ],
    "operator": [
        f"{API}.STREAM.DELETE.REBASER_COMMITS", f"{API}.STREAM.CREATE.OTHER", "_INBOX.server.x",
        f"{API}.CONSUMER.MSG.NEXT.REBASER_TASKS.rebaser-tasks", "$JS.ACK.REBASER_TASKS.rebaser-tasks.1.1.1.1.0",
    ],
}  # fmt: skip
HIDDEN = {
    "app": [
        "_INBOX.>",
        "_INBOX.clients.reader.>",
        "_INBOX.server.>",
        "rebaser.>",
        "rebaser.requests.*.*",
        "$JS.>",
        ">",
    ],
    "reader": ["_INBOX.clients.app.>", "_INBOX.server.>", "rebaser.requests.*.*", "$O.>", "$JS.ACK.>", ">"],
    "editor": ["_INBOX.clients.app.>", "_INBOX.server.>", "rebaser.requests.*.*", "rebaser.servers.ping"],
    "server": ["_INBOX.clients.>", "rebaser.requests.*.*", ">"],
    "operator": ["_INBOX.server.>", "_INBOX.clients.app.>", "rebaser.requests.*.*"],
}


async def test_what_is_not_in_the_table_is_denied_at_once(url: str) -> None:
    before = await settled(url)
    assert set(FORBIDDEN) == set(HIDDEN) == set(USERS)
    for user in USERS:
        async with connected(user, url) as connection:
            for subject in FORBIDDEN[user]:
                with anyio.fail_after(60), pytest.raises(NotAllowed) as denied:
                    await connection.request(subject, b"{}", timeout=50)
                assert (denied.value.operation, denied.value.subject) == ("publish", subject)
            for subject in HIDDEN[user]:
                with anyio.fail_after(60), pytest.raises(NotAllowed) as denied:
                    async with connection.subscribe(subject) as messages:
                        await anext(messages)
                assert (denied.value.operation, denied.value.subject) == ("subscribe", subject)
    assert await contents(url) == before


@pytest.mark.parametrize("user", OUTSIDE)
async def test_the_account_alone_is_a_fence(user: str, url: str) -> None:
    """Even a user of the account without restrictions reaches only what the account imports."""
    before = await settled(url)
    async with connected(f"{WITHOUT_PERMISSIONS}{user}", url) as connection:
        for subject in FORBIDDEN[user]:
            if subject.startswith(f"{API}."):  # asks this account, which has no JetStream
                assert "not enabled" in (await connection.request(subject, b"", timeout=50)).data.decode()
            elif not subject.startswith("_INBOX.clients."):  # only users of the same account receive it
                with pytest.raises(NoRespondersError):
                    await connection.request(subject, b'{"seq":1}', timeout=50)
    assert await contents(url) == before


TARGETS = (
    "rebaser.commits.shop.main", "rebaser.dlq.shop.main", "rebaser.sweep", "rebaser.requests.other.main",
    "rebaser.tasks.other.main.process", "$O.REBASER_BLOBS.M.x", "$JS.API.STREAM.PURGE.REBASER_COMMITS",
)  # fmt: skip
REFUSED = {"Nats-Expected-Stream": "nobody"}
Attack = Callable[[Connection, str], Awaitable[None]]


async def answer_to_a_publish(connection: Connection, target: str) -> None:
    """Use the answer of JetStream to a publish. It is an error, and removes a request."""
    for subject in ("rebaser.requests.shop.trick", "rebaser.tasks.shop.trick.process"):
        await connection.publish(subject, b"", REFUSED, reply=target)


async def answer_of_the_api(connection: Connection, target: str) -> None:
    for prefix in (API, OURS):
        for call in (
            "STREAM.INFO.REBASER_COMMITS",
            "STREAM.MSG.GET.REBASER_COMMITS",
            "CONSUMER.DELETE.REBASER_COMMITS.x",
        ):
            await connection.publish(f"{prefix}.{call}", b'{"seq":1}', reply=target)


async def what_a_consumer_delivers(connection: Connection, target: str) -> None:
    """Use deliveries with and without a body: a purge without a body purges everything."""
    for prefix, headers_only in itertools.product((API, OURS), (False, True)):
        name, subject = connection.new_name(), "rebaser.commits.shop.*"
        config = {"name": name, "deliver_subject": target, "ack_policy": "none", "filter_subject": subject}
        body = {"stream_name": "REBASER_COMMITS", "config": config | {"headers_only": headers_only}, "action": "create"}
        with suppress(NoRespondersError, NotAllowed):
            api = f"{prefix}.CONSUMER.CREATE.REBASER_COMMITS.{name}.{subject}"
            await connection.request(api, json.dumps(body).encode(), timeout=50)


@pytest.mark.parametrize("attack", [answer_to_a_publish, answer_of_the_api, what_a_consumer_delivers])
async def test_nothing_is_made_to_land_elsewhere(url: str, attack: Attack) -> None:
    """Neither a user of the file nor an unrestricted user of the same account can do it."""
    async with client_of("app", url) as app:
        await app.enqueue_updates_with_reply("shop", "main", EDITS)
    before = await settled(url)
    for user in OUTSIDE:
        for name in (user, f"{WITHOUT_PERMISSIONS}{user}"):
            async with connected(name, url) as connection:
                for target in TARGETS:
                    if user == "editor" and target.startswith(("rebaser.requests", "rebaser.tasks", "$O.")):
                        continue  # the user may publish there itself
                    if attack is what_a_consumer_delivers and target == "rebaser.sweep":
                        continue  # see the next test
                    await attack(connection, target)
                with suppress(NoRespondersError, NotAllowed):
                    # Once this is answered, everything that was sent has arrived.
                    await connection.request("rebaser.nobody")
    assert await settled(url) == before


async def test_what_a_consumer_delivers_to_the_stream_of_sweeps_is_bounded_and_harms_no_sweep(url: str) -> None:
    """NATS delivers only to a stream whose subject has no wildcard, which only this stream has: one message of each
    log."""
    async with client_of("app", url) as app, connected("reader", url) as reader:
        for number in range(12):
            await app.enqueue_updates_with_reply("shop", f"cs{number}", [Set("v", "x" * 10_000)])
        await what_a_consumer_delivers(reader, "rebaser.sweep")
        await settled(url)
        # It has no task, so only a sweep finds it.
        headers, payload = encode(EnqueueUpdatesRequest(RequestId("s"), "shop", "swept", tuple(EDITS)))
        await JetStream(app._connection).publish("rebaser.requests.shop.swept", payload, headers)
        await settled(url)
        info = await JetStream(reader).stream_info("REBASER_SWEEP")
    assert info.messages > 1, "the attack does nothing any more"
    assert info.bytes <= 64 * 1024
    async with client_of("reader", url) as client:
        assert (await client.values("shop", "swept"))["b"].value == 2


async def test_in_one_account_permissions_are_no_fence(tmp_path: Path) -> None:
    """This is why all users except servers and operators have accounts of their own: here, the attack above
    succeeds."""
    attacker = {
        "user": "app",
        "password": "w",
        "permissions": {"publish": ["rebaser.requests.shop.*", "rebaser.tasks.*.*.*"]},
    }
    users = [attacker, {"user": "server", "password": "w"}]
    async with (
        embedded_nats(tmp_path, authorization={"users": users}) as nats,
        Connection.connect(nats.url, user="server", password="w") as server,
        Connection.connect(nats.url, user="app", password="w") as app,
    ):
        js = JetStream(server)
        await ensure_topology(js, Subjects(), TopologyOptions())
        await answer_to_a_publish(app, "rebaser.commits.shop.main")
        with anyio.fail_after(60):
            while (await js.stream_info("REBASER_COMMITS")).messages < 2:  # noqa: ASYNC110 - NATS stores them
                await anyio.sleep(0.02)


async def test_replies_and_answers_to_pings_go_to_clients_only(url: str, events: Events) -> None:
    """The header may name any inbox: the permissions of the server also prevent it."""
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "shop", "main", tuple(EDITS)))
    inboxes = ("_INBOX.server.x", "rebaser.commits.shop.main", "$JS.API.STREAM.PURGE.REBASER_COMMITS")
    async with connected("app", url) as app, connected("reader", url) as reader:
        for inbox in inboxes:
            await JetStream(app).publish("rebaser.requests.shop.main", payload, headers | {REPLY_INBOX: inbox})
            await reader.publish("rebaser.servers.ping", b"", {REPLY_INBOX: inbox}, reply=reader.new_inbox())
        await app.publish("rebaser.tasks.shop.main.process")
        assert len(await ping(reader, Subjects(), patience=60, enough=bool)) == 1
    await settled(url)
    assert {event["inbox"] for event in events.named("reply_refused")} == set(inboxes)
    assert {event["inbox"] for event in events.named("ping_refused")} == set(inboxes)
    assert not events.named("nats_not_allowed")


async def test_too_large_a_request_of_an_app_is_refused_at_once(url: str) -> None:
    """The request would need a blob, and an app may not store blobs."""
    async with client_of("app", url) as app:
        with (
            anyio.fail_after(60),
            pytest.raises(NotAllowed, match=r"publish to \$JS\.API\.STREAM\.MSG\.GET\.OBJ_REBASER_BLOBS"),
        ):
            await app.enqueue_updates("shop", "main", [Set(f"v/{number}", "x" * 1000) for number in range(3000)])


def test_the_guide_has_the_table_of_the_file() -> None:
    """Its rows are subjects, its columns users; the words say what the user may do."""
    table: dict[str, set[tuple[str, str]]] = {user: set() for user in USERS}
    for line in GUIDE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != len(USERS) + 2 or not cells[0].startswith("`"):
            continue
        for user, cell in zip(USERS, cells[1:], strict=False):
            for written in re.findall("`(.*?)`", cells[0]):
                subject = written.replace("NAME", user)
                api = subject.replace("$JS.API.", "$JS.rebaser.API.") if user in ("editor", "reader") else subject
                table[user] |= {(operation, api) for operation in cell.replace(" and", ",").split(", ") if cell}
    assert table == rights()
