"""Servers of two versions side by side: each decides what it can read, and no request is skipped, reordered or dead."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, RebaserClient, RequestRejected, Set
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log import commits
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode_updates_blob, peek
from rebaser_core.streams.subjects import Subjects
from tests.support import newer_server, older_server
from tests.support.fleet import NO_SPARK, servers
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "spark": NO_SPARK, "warm": False, "ack_wait": 1, "quiescent_period": 600, "retry_for": 600,
}  # fmt: skip
NEWER = SETTINGS | {"module": "tests.support.newer_server"}
BRIEFLY = SETTINGS | {"quiescent_period": 0.2}  # so that change sets pass from server to server
NO_HISTORY = BRIEFLY | {"history_for": 0}
OLDER = NO_HISTORY | {"module": "tests.support.older_server"}


class Editor:
    """A client that sends requests of every version, and remembers by change set what it sent."""

    def __init__(self, js: JetStream, client: RebaserClient) -> None:
        self._js = js
        self._client = client
        self._subjects = Subjects("")
        self._blobs = open_blobs(None, js, self._subjects.blobs_bucket)
        self.sent: dict[str, list[str]] = {}

    async def send(self, change_set: str, *versions: int) -> None:
        """Store one request of each version."""
        key = ChangeSetKey("up", change_set)
        for version in versions:
            sent = self.sent.setdefault(change_set, [])
            sent.append(f"{change_set}-{len(sent)}-v{version}")
            updates = (Set(sent[-1], version),)
            address = await self._blobs.put(encode_updates_blob(updates)) if version == 1 else None
            request = EnqueueUpdatesRequest(
                RequestId(sent[-1]), "up", change_set, None if address else updates, address
            )
            headers, payload = newer_server.NEWER.encode(request, version=version)
            await self._js.publish(self._subjects.requests(key), payload, headers)
            await publish_task(self._js, self._subjects, key)

    async def decided(self, change_set: str) -> list[Commit]:
        """Return the log once all requests are decided: each once, in order, and applied."""
        with anyio.fail_after(120):
            async for commit in self._client.watch("up", change_set, after=0):
                if self.sent[change_set][-1] in [decision.request_id for decision in commit.requests]:
                    break
        commits = await commits_of(self._client, "up", change_set)
        check_history(commits, self.sent[change_set])
        assert set(await self._client.values("up", change_set)) == set(self.sent[change_set])
        return commits

    async def versions(self) -> dict[str, dict[int, int]]:
        """Return the versions of all stored commits: by change set, and by log sequence."""
        found: dict[str, dict[int, int]] = {}
        stream, sequence = self._subjects.commits_stream, 0
        while (message := await self._js.next(stream, ">", sequence + 1)) is not None:
            sequence = message.sequence
            key = self._subjects.parse(message.subject)[1]
            found.setdefault(key.change_set, {})[sequence] = peek(message.headers).version
        return found

    async def read_as_before(self, change_set: str) -> None:
        """Read the log as a program of the release before history. Raises `UnsupportedVersion` as such a program."""
        subject, sequence = self._subjects.commits(ChangeSetKey("up", change_set)), 0
        while (message := await self._js.next(self._subjects.commits_stream, subject, sequence + 1)) is not None:
            sequence = message.sequence
            older_server.decode_commit(message.headers, message.data)

    async def owners(self, change_set: str) -> list[str]:
        """Return the server that decided each request, in order."""
        return [commit.owner for commit in await self.decided(change_set) for _ in commit.requests]


@asynccontextmanager
async def editing(url: str) -> AsyncIterator[Editor]:
    async with Connection.connect(url) as connection, RebaserClient.connect(url) as client:
        yield Editor(JetStream(connection), client)
        assert [letter async for letter in client.dead_letters.find()] == []


async def test_servers_of_two_versions_share_the_work(own_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers read versions 1 to 4 of a request. Only the newer one reads version 5, and it writes a log in its
    own version.

    The older server leaves both alone: a request of version 5 at the head of a queue, and a log with commits that it
    cannot read.
    """
    # In this process, so that the test can read all commits.
    monkeypatch.setattr(commits, "decode_commit", newer_server.decode_commit)
    async with editing(own_nats.url) as editor:
        async with servers(own_nats.url, "first", **NEWER):
            await editor.send("log", 1, 5, 2)
            assert await editor.owners("log") == ["first"] * 3
        async with servers(own_nats.url, "old", **SETTINGS) as [old]:
            await editor.send("log", 2)
            failed = await old.wait_for("load_failed", change_set="log")
            assert failed["code"] == "unsupported_version"
            await editor.send("main", 1, 2, 3)
            assert await editor.owners("main") == ["old", "old", "old"]
            await editor.send("main", 5, 2, 1)
            await old.wait_for("request_held", change_set="main")
            async with servers(own_nats.url, "new", **NEWER):
                assert await editor.owners("main") == ["old", "old", "old", "new", "new", "new"]
                for number in range(4):
                    await editor.send(f"other{number}", 1, 5, 2)
                for number in range(4):
                    assert (await editor.owners(f"other{number}"))[1:] == ["new", "new"]
                assert await old.terminate() == 0
                assert await editor.owners("log") == ["first", "first", "first", "new"]
        assert {event["code"] for event in old.events if event["event"] == "load_failed"} == {"unsupported_version"}


NAMES = [f"cs{number}" for number in range(6)]


async def test_history_begins_once_every_server_reads_it(own_nats: EmbeddedNats) -> None:
    """REBASER_HISTORY_FOR=0 is the gate of the upgrade: until a server runs without it, programs of the release before
    history read every commit. Then they refuse, by its version, what they cannot read, and nothing is lost."""

    async def send(editor: Editor, *names: str) -> list[str]:
        for name in names:
            await editor.send(name, 1, 2, 2)
        return [owner for name in names for owner in (await editor.owners(name))[-3:]]

    async with editing(own_nats.url) as editor, RebaserClient.connect(own_nats.url) as client:
        async with servers(own_nats.url, "old", **OLDER):
            assert set(await send(editor, *NAMES)) == {"old"}
            async with servers(own_nats.url, "closed", **NO_HISTORY):
                await send(editor, *NAMES)
                assert {one for some in (await editor.versions()).values() for one in some.values()} <= {1, 2}
                for name in NAMES:
                    await editor.read_as_before(name)
        async with servers(own_nats.url, "closed", **NO_HISTORY) as [closed]:
            with pytest.raises(RequestRejected, match="REBASER_HISTORY_FOR") as refused:
                await client.create_branch("up", "early", "cs0")
            assert refused.value.code == "unsupported"
            async with servers(own_nats.url, "open", **BRIEFLY):
                while "open" not in await send(editor, *NAMES):  # who takes a task first is chance
                    pass
                assert await closed.terminate() == 0
                await send(editor, *NAMES)
        logs = {name: await editor.decided(name) for name in NAMES}
        versions = await editor.versions()
        for name, commits_ in logs.items():
            assert {one.owner for one in commits_ if versions[name].get(one.sequence) == 3} == {"open"}
        with pytest.raises(UnsupportedVersion, match="a Commit of version 3, but this release reads versions up to 2"):
            await editor.read_as_before("cs0")
        async with servers(own_nats.url, "old", **OLDER) as [old]:
            await editor.send("cs0", 2)
            assert (await old.wait_for("load_failed", change_set="cs0"))["code"] == "unsupported_version"
            async with servers(own_nats.url, "open", **BRIEFLY):
                assert (await editor.owners("cs0"))[-1] == "open"
                assert await old.terminate() == 0  # otherwise, it might be the one that gets the next request
                await client.create_branch("up", "early", "cs0", follow="manual")
                assert await client.values("up", "early") == await client.values("up", "cs0")
                await client.undo("up", "cs1")
                assert set(await client.values("up", "cs1")) == set(editor.sent["cs1"][:-1])
