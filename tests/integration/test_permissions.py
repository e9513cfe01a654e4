"""The rights in deploy/docs/operating.md are exactly those that clients and servers need."""

import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from rebaser.cli.connect import open_stores
from rebaser.doctor.examination import examine
from rebaser.doctor.repair import repair
from rebaser.doctor.rights import client_probes, missing_rights, server_probes
from rebaser.embedded.nats import embedded_nats, find_binary
from rebaser.runtime import context
from rebaser.serving import serve
from rebaser.settings import load_settings
from rebaser.testing.in_process import InProcessEngine
from rebaser_client import Derive, NotAllowed, RebaserClient, Set
from rebaser_client.admin.dead_letters import DeadLetter
from rebaser_client.jetstream import Connection, JetStream, NoRespondersError
from rebaser_client.log.entries import EntryKind
from rebaser_client.nats.link import Link
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "deploy" / "docs" / "operating.md"
WORD = "password-of-everybody"
WS, CS = "shop", "main"
EDITS = [Set("a", 1), Derive("b", "cel", {"a": "a"}, {"expr": "a + 1"})]
KINDS: tuple[EntryKind, ...] = ("commits", "requests", "dlq")
RARE = {
    # To remove parts of a blob that could not be stored.
    ("server", "publish", "$JS.API.STREAM.PURGE.OBJ_REBASER_BLOBS"),
    ("server", "publish", "$JS.API.STREAM.MSG.GET.REBASER_DLQ"),  # garbage collection, like the next three
    ("server", "publish", "$JS.API.CONSUMER.CREATE.REBASER_DLQ.>"),
    ("server", "publish", "$JS.API.CONSUMER.DELETE.REBASER_DLQ.*"),
    ("server", "publish", "$JS.API.CONSUMER.MSG.NEXT.OBJ_REBASER_BLOBS.*"),
    ("server", "publish", "rebaser.requests.*.*"),  # for the request that settles a branch after an apply
    ("server", "publish", "$JS.API.STREAM.PURGE.REBASER_REQUESTS"),  # to delete many decided requests at once
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[tuple[str, str]]]:
    """The rights that each user uses, as pairs of "publish" or "subscribe" and a subject."""
    found: dict[str, set[tuple[str, str]]] = {}
    publish, publish_now, subscribe = Link.publish, Link.publish_now, Link.subscribe

    def note(link: Link, operation: str, subject: str) -> None:
        found.setdefault(str(link.client.options["user"]), set()).add((operation, subject))

    def published(self: Link, subject: str, *rest: Any) -> bool:
        note(self, "publish", subject)
        return publish(self, subject, *rest)

    def published_now(self: Link, subject: str, *rest: Any) -> bool:
        note(self, "publish", subject)
        return publish_now(self, subject, *rest)

    async def subscribed(self: Link, subject: str, *rest: Any) -> Any:
        note(self, "subscribe", subject)
        return await subscribe(self, subject, *rest)

    monkeypatch.setattr(Link, "publish", published)
    monkeypatch.setattr(Link, "publish_now", published_now)
    monkeypatch.setattr(Link, "subscribe", subscribed)
    return found


def block() -> str:
    """Return the part of nats.conf in the guide."""
    [text] = re.findall(r"^```conf.*\n(authorization \{.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return text.replace("$CLIENT_PASSWORD", WORD).replace("$SERVER_PASSWORD", WORD)  # type: ignore[no-any-return]


def rights() -> dict[str, set[tuple[str, str]]]:
    """Return the rights of each user of the guide, as pairs of "publish" or "subscribe" and a pattern."""
    found = {}
    for user, text in re.findall(r"user: (\w+), (.*?)(?=user: |\Z)", block(), re.DOTALL):
        found[user] = {
            (operation, pattern)
            for operation, patterns in re.findall(r"(publish|subscribe): \{ allow: \[(.*?)\]", text, re.DOTALL)
            for pattern in re.findall(r'"(.*?)"', patterns)
        }
    return found


def covers(pattern: str, subject: str) -> bool:
    ours, theirs = pattern.split("."), subject.split(".")
    if ours[-1] == ">":
        theirs = [*theirs[: len(ours) - 1], ">"] if len(theirs) >= len(ours) else theirs
    return len(ours) == len(theirs) and all(one in ("*", other) for one, other in zip(ours, theirs, strict=True))


class Slow(InProcessEngine):
    """An engine that is slow enough for progress to be reported."""

    seconds = 0.3

    async def evaluate(self, packets: Sequence[bytes], **more: object) -> list[list[bytes]]:
        await anyio.sleep(self.seconds)
        return await super().evaluate(packets, **more)


@asynccontextmanager
async def installation(folder: Path, given: dict[str, set[tuple[str, str]]], **settings: Any) -> AsyncIterator[str]:
    """Run a nats-server whose users have the rights `given`, and a Rebaser server that is one of them."""
    users = [
        {
            "user": user,
            "password": WORD,
            "permissions": {
                kind: {"allow": sorted(pattern for operation, pattern in allowed if operation == kind)}
                for kind in ("publish", "subscribe")
            },
        }
        for user, allowed in given.items()
    ] + [{"user": "anybody", "password": WORD}]
    async with embedded_nats(folder, authorization={"users": users}) as nats, running(nats.url, **settings):
        yield nats.url


@asynccontextmanager
async def running(url: str, **more: Any) -> AsyncIterator[None]:
    ready = anyio.Event()
    given: dict[str, Any] = {"nats_url": url, "nats_user": "server", "nats_password": WORD}
    quick = {
        "checkpoint_bytes": 1024,
        "history_for": 0,
        "progress_every": 0.1,
        "sweep_interval": 0.5,
        "quiescent_period": 0.5,
    }
    settings = load_settings(**(given | quick | more))

    async def run() -> None:
        await serve(settings, ready=ready.set)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await ready.wait()
        yield
        group.cancel_scope.cancel()


async def work(client: RebaserClient) -> None:
    """Use everything that a client may do."""
    await client.enqueue_updates_with_reply(WS, CS, EDITS, wait="derived")  # type: ignore[arg-type]
    many = [Set(f"v/{number}", "x" * 1000) for number in range(3000)]
    for _ in range(3):  # several, so that a checkpoint replaces another
        await client.enqueue_updates_with_reply(WS, CS, many, wait="derived")
    await client.enqueue_updates(WS, CS, [Set("a", 2)])
    async with anyio.create_task_group() as group:
        group.start_soon(client.recompute, WS, CS)
        async with aclosing(client.watch_progress(WS, CS)) as told:
            async for _ in told:
                break
    assert (await client.values(WS, CS))["b"].value == 3
    assert await client.exists(WS, CS)
    while not (await client.status()).servers:
        pass  # it did not answer soon
    assert (await client.explain(WS, CS)).facts.log is not None
    async with client.fleet() as fleet:
        assert (await fleet.look()).total == 1
    for kind in KINDS:
        async with aclosing(client.entries(kind)) as entries:
            async for _ in entries:
                break
    await client.task_acks(0.1)


async def list_dead_letters(client: RebaserClient) -> list[DeadLetter]:
    found = [letter async for letter in client.dead_letters.find()]
    assert [await client.dead_letters.payload(letter) for letter in found] == [b"unreadable"] * len(found)
    return found


async def leave_to_the_server(url: str) -> None:
    """Leave requests without a task and unreadable messages to the server, and return when both are handled."""
    async with Connection.connect(url, user="anybody", password=WORD) as connection:
        js = JetStream(connection)
        await js.publish(f"rebaser.requests.{WS}.nobody", b"unreadable")
        with anyio.fail_after(60):
            while (await js.stream_info("REBASER_DLQ")).messages == 0:  # noqa: ASYNC110 - a server fills it
                await anyio.sleep(0.05)
            while (await js.stream_info("REBASER_REQUESTS")).messages:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.05)


async def test_what_the_guide_allows_is_what_is_needed(
    used: dict[str, set[tuple[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied: list[str] = []
    tell = Connection._denied
    monkeypatch.setattr(Connection, "_denied", lambda self, error: (denied.append(str(error)), tell(self, error)))  # type: ignore[func-returns-value]
    monkeypatch.setattr(context, "_spark", lambda *_: Slow())
    async with installation(tmp_path, rights(), ack_sample=100) as url:
        async with RebaserClient.connect(url, user="client", password=WORD) as client:
            await work(client)
            await leave_to_the_server(url)
            assert len(await list_dead_letters(client)) == 1
        # Other settings, so that every stream is updated.
        async with running(url, ack_sample=50, duplicate_window=60, sweep_interval=5):
            pass
    assert not denied
    allowed = {(user, *right) for user, some in rights().items() for right in some}
    unused = {
        (user, operation, pattern)
        for user, operation, pattern in allowed
        if not any(operation == one and covers(pattern, subject) for one, subject in used[user])
    }
    assert unused <= RARE <= allowed


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        (("publish", "rebaser.requests.*.*"), "enqueue"),
        (("publish", "rebaser.servers.ping"), "status"),
        (("publish", "$JS.API.CONSUMER.CREATE.REBASER_COMMITS.>"), "wait"),
        (("publish", "$JS.API.STREAM.MSG.GET.REBASER_COMMITS"), "values"),
        (("subscribe", "rebaser.progress.*.*"), "progress"),
        (("subscribe", "_INBOX.>"), "connect"),
    ],
)
async def test_a_right_that_is_missing_is_named_at_once(
    missing: tuple[str, str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise, everything would be computed before a client has to wait for it.
    monkeypatch.setattr(Slow, "seconds", 3600.0)
    monkeypatch.setattr(context, "_spark", lambda *_: Slow())
    given = rights()
    given["client"] = given["client"] - {missing}

    async def do(url: str) -> None:
        async with RebaserClient.connect(url, user="client", password=WORD) as client:
            if what in ("enqueue", "wait"):
                wait = "derived" if what == "wait" else "applied"
                await client.enqueue_updates_with_reply(WS, CS, EDITS, wait=wait, timeout=3600)  # type: ignore[arg-type]
            elif what == "status":
                await client.status()
            elif what == "values":
                await client.values(WS, CS)
            elif what == "progress":
                async for _ in client.watch_progress():
                    raise AssertionError

    async with installation(tmp_path, given) as url:
        with anyio.fail_after(60), pytest.raises(NotAllowed) as denied:
            await do(url)
    assert denied.value.operation == missing[0]
    assert covers(missing[1], denied.value.subject)


def needs(command: str) -> tuple[str, set[tuple[str, str]]]:
    """Return the user of the guide whose rights a command needs, and the rights that it needs in addition."""
    [[user, more]] = re.findall(
        rf"^\| .*`rebaser {command}`.* \| the rights of a (\w+)(.*) \|$", GUIDE.read_text(), re.MULTILINE
    )
    return user, {("publish", subject) for subject in re.findall(r"`(.*?)`", more)}


async def test_dead_letters_are_sent_again_and_dropped_with_the_rights_that_the_guide_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_spark", lambda *_: Slow())
    assert needs("dlq drop") == needs("dlq redrive")
    user, more = needs("dlq drop")
    async with installation(tmp_path, rights() | {"operator": rights()[user] | more}) as url:
        await leave_to_the_server(url)
        async with RebaserClient.connect(url, user=user, password=WORD) as client:
            [letter] = await list_dead_letters(client)
            with pytest.raises(NotAllowed, match="DELETE"):
                await client.dead_letters.drop(letter)
        async with RebaserClient.connect(url, user="operator", password=WORD) as client:
            assert await client.dead_letters.redrive(letter)
            with anyio.fail_after(60):
                while not (  # noqa: ASYNC110 - a server moves it there
                    again := [one for one in await list_dead_letters(client) if one != letter]
                ):
                    await anyio.sleep(0.05)
            await client.dead_letters.drop(again[0])
            assert not await list_dead_letters(client)


async def test_a_log_is_repaired_with_the_rights_that_the_guide_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_spark", lambda *_: Slow())
    user, more = needs("doctor WS CS --repair --yes")
    assert not more
    key = ChangeSetKey(WS, CS)
    async with installation(tmp_path, rights()) as url:
        async with RebaserClient.connect(url, user="client", password=WORD) as client:
            await client.enqueue_updates_with_reply(WS, CS, EDITS, wait="derived")  # type: ignore[arg-type]
        async with Connection.connect(url, user="anybody", password=WORD) as connection:
            js = JetStream(connection)
            last = await js.last("REBASER_COMMITS", f"rebaser.commits.{WS}.{CS}")
            assert last is not None
            headers = {name: value for name, value in last.headers.items() if name.startswith("X-")}
            await js.publish(last.subject, b"garbage", headers)
        settings = load_settings(nats_url=url, nats_user=user, nats_password=WORD)
        async with open_stores(settings) as stores:
            examination = await examine(stores, key)
            assert examination.damaged
            await repair(stores, examination, "test")
            assert not (await examine(stores, key)).damaged


PROBES = {"client": client_probes, "server": server_probes}
UNPROBED = {
    ("client", "subscribe", "$JS.EVENT.METRIC.CONSUMER.ACK.REBASER_TASKS.rebaser-tasks"),  # for status --acks only
    ("client", "publish", "$JS.API.CONSUMER.INFO.REBASER_TASKS.rebaser-tasks"),  # as above
    ("client", "subscribe", "_INBOX.>"),  # used with every call
    ("server", "subscribe", "_INBOX.>"),  # as above
    ("server", "publish", "rebaser.progress.*.*"),
    *(
        ("server", "publish", f"$JS.API.STREAM.PURGE.{name}")
        for name in ("REBASER_COMMITS", "REBASER_REQUESTS", "OBJ_REBASER_BLOBS")
    ),
    ("server", "publish", "$JS.API.CONSUMER.MSG.NEXT.REBASER_TASKS.rebaser-tasks"),
    ("server", "publish", "$JS.API.CONSUMER.MSG.NEXT.REBASER_SWEEP.rebaser-sweep"),
    ("server", "publish", "$JS.API.CONSUMER.UNPIN.REBASER_SWEEP.rebaser-sweep"),
    ("server", "publish", "$JS.API.CONSUMER.MSG.NEXT.OBJ_REBASER_BLOBS.*"),  # garbage collection works without it
}


def test_the_doctor_probes_what_the_guide_allows() -> None:
    unprobed = set()
    for user, allowed in rights().items():
        probes = [("subscribe" if one.listen else "publish", one.subject) for one in PROBES[user](Subjects(""))]
        for operation, subject in probes:
            assert any(operation == right[0] and covers(right[1], subject) for right in allowed), (user, subject)
        unprobed |= {
            (user, *right)
            for right in allowed
            if not any(operation == right[0] and covers(right[1], subject) for operation, subject in probes)
        }
    assert unprobed == UNPROBED


async def test_the_doctor_names_the_rights_that_are_missing_and_changes_nothing(tmp_path: Path) -> None:
    given = rights()
    missing = {
        "client": {("publish", "rebaser.requests.*.*"), ("subscribe", "rebaser.progress.*.*")},
        "server": {("publish", "$JS.API.STREAM.UPDATE.REBASER_DLQ"), ("publish", "$O.REBASER_BLOBS.M.>")},
    }
    poorer = {f"poor_{user}": given[user] - some for user, some in missing.items()}
    async with (
        installation(tmp_path, given | poorer) as url,
        Connection.connect(url, user="anybody", password=WORD) as connection,
    ):
        js = JetStream(connection)
        names = ("REBASER_REQUESTS", "REBASER_COMMITS", "REBASER_DLQ", "REBASER_SWEEP", "OBJ_REBASER_BLOBS")
        before = [replace(await js.stream_info(name), now="") for name in names]
        for user in given:
            assert await missing_rights(connection, PROBES[user](Subjects(""))) == []
            async with Connection.connect(url, user=user, password=WORD) as own:
                assert await missing_rights(own, PROBES[user](Subjects(""))) == []
            async with Connection.connect(url, user=f"poor_{user}", password=WORD) as own:
                found = await missing_rights(own, PROBES[user](Subjects("")))
            told = [one.partition(" to ")[::2] for one in found]
            assert len(told) == len(missing[user])
            for operation, pattern in missing[user]:
                assert any(one[0] == operation and covers(pattern, one[1]) for one in told), found
        assert before == [replace(await js.stream_info(name), now="") for name in names]


async def test_what_nobody_waits_for_is_told_in_the_log(tmp_path: Path, events: Events) -> None:
    permissions = {"publish": {"deny": ["x.>"]}}
    users = [{"user": "me", "password": WORD, "permissions": permissions}]
    async with (
        embedded_nats(tmp_path, authorization={"users": users}) as nats,
        Connection.connect(nats.url, user="me", password=WORD) as connection,
    ):
        for _ in range(3):
            await connection.publish("x.Y")
        with pytest.raises(NoRespondersError):  # all waiting work was done
            await connection.request("nobody")
        with pytest.raises(NotAllowed, match=r"publish to x\.Z"):
            await JetStream(connection).publish("x.Z", b"")
        with pytest.raises(NotAllowed, match=r"publish to x\.Z"):
            await JetStream(connection).publish_all("x.Z", [b"1", b"2"])
    assert [one["subject"] for one in events.named("nats_not_allowed")].count("x.Y") == 1


def test_nats_accepts_the_guide(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text(block())
    done = subprocess.run([find_binary(), "-t", "-c", file], capture_output=True, text=True, timeout=120)  # noqa: PLW1510 - looked at
    assert done.returncode == 0, done.stderr
    assert set(rights()) == {"client", "server"}
