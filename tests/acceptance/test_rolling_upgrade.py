"""Servers of two versions side by side: each decides what it can read, and no request is skipped, reordered or dead."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, RebaserClient, Set
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log import commits
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from tests.support import newer_server
from tests.support.fleet import NO_SPARK, servers
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "spark": NO_SPARK, "warm": False, "ack_wait": 1, "quiescent_period": 600, "retry_for": 600,
}  # fmt: skip
NEWER = SETTINGS | {"module": "tests.support.newer_server"}


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
