"""The skeleton: the messages of Rebaser, and nothing else. It shows what the design allows at most.

Its messages have the subjects, sizes, streams and consumers of Rebaser's messages, and travel through Rebaser's
connection, but all contents are constant: nothing is checked, decided, encoded, folded or read. In the steady state, a
request takes these messages:

- the request, and its PubAck, for which the client waits
- its delivery by an ordered push consumer, one for each change set
- the commit, and its PubAck, shared by at most `BATCH` requests of one change set
- the answer
- the delete of the request, sent in the background, and a progress ack for each task every two seconds

`python -m tests.benchmarks.skeleton serve URL` is the server; `load` is called by the benchmark of requests.
"""

import asyncio
import itertools
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import uvloop

from rebaser.runtime.python_gc import short_collections
from rebaser.runtime.request_deleter import RequestDeleter
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream, NoAnswerError, NoRespondersError
from rebaser_client.jetstream.ordered.requests import ConsumerRequests, Generation
from rebaser_client.jetstream.pull.pull_consumer import PullConsumer
from rebaser_client.nats.messages import STATUS
from rebaser_core.commit import Applied, Commit, Decision, Kind, Outcome
from rebaser_core.encoding.envelope import MESSAGE_ID, REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId, ulid
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesResponse, Success, encode, encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER, TASKS_GROUP, TopologyOptions
from rebaser_core.updates import Set

SUBJECTS = Subjects("skeleton")
BATCH = 32  # as many requests as Rebaser puts into a commit by default
PROGRESS = 2.0  # seconds between two progress acks for a task, as in a server
READY = "skeleton.ready"
KEY = ChangeSetKey("bench", "rebaser-1000")
ID = RequestId(ulid(1_800_000_000_000, b"0123456789"))


def _commit(count: int) -> tuple[dict[str, str], bytes]:
    """Return the headers and the payload of a commit that decides `count` requests."""
    decided = tuple(Decision(1_000_000 + n, ID, Outcome.SUCCESS, 1, digest=bytes(range(12))) for n in range(count))
    applied, edits = Applied("2026-01-01T00:00:00.000000000Z", 1_000_000), (Set("n", 1),)
    return encode_commit(
        Commit(
            *(ID, 1_000_000, Kind.REBASE, 1_800_000_000_000, "host-12345", applied, None, decided, edits), before=edits
        )
    )


REQUEST = encode(EnqueueUpdatesRequest(ID, KEY.workspace, KEY.change_set, (Set("n", 1),)))
ANSWER = encode(EnqueueUpdatesResponse(ID, KEY.workspace, KEY.change_set, Success(1, 1_000_000, 0, 0)))
ANSWER_HEADERS = {**ANSWER[0], MESSAGE_ID: ID}
COMMITS = {count: _commit(count) for count in range(1, BATCH + 1)}


class Cell:
    """A change set: its queue of reply inboxes and stream sequences, and the sequence of its last commit."""

    __slots__ = ("key", "queue", "revision")

    def __init__(self, key: ChangeSetKey) -> None:
        self.key = key
        self.queue: deque[tuple[str, int]] = deque()
        self.revision = 0


class Server:
    def __init__(self, connection: Connection, group: anyio.abc.TaskGroup) -> None:
        self.connection = connection
        self.js = JetStream(connection)
        self.group = group
        self.deleter = RequestDeleter(self.js, SUBJECTS.requests_stream)
        self.created = ""  # the creation time of the stream of requests
        self.tasks: dict[ChangeSetKey, str] = {}  # the ack subject of each task

    async def run(self) -> None:
        await ensure_topology(self.js, SUBJECTS, TopologyOptions())
        self.created = (await self.js.stream_info(SUBJECTS.requests_stream)).created
        self.group.start_soon(self.deleter.run)
        self.group.start_soon(self._keep_tasks_alive)

        def ready(_: str, reply: str, *__: object) -> None:
            self.connection.post(reply)

        await self.connection.listen(READY, ready)
        async with PullConsumer(self.js, SUBJECTS.tasks_stream, TASKS_CONSUMER, group=TASKS_GROUP) as pull:
            pull.add_credit(10_000)
            async for task in pull:
                key = SUBJECTS.parse(task.subject)[1]
                if key not in self.tasks:
                    self.tasks[key] = task.reply
                    self.group.start_soon(self._own, Cell(key))

    async def _own(self, cell: Cell) -> None:
        """Create the consumer of a change set, then commit what it delivers."""
        wake = asyncio.Event()

        def on_message(_: str, reply: str, __: bytes, headers: dict[str, str] | None) -> None:
            if headers is None or STATUS in headers:
                if reply:
                    self.connection.post(reply)  # flow control
                return
            cell.queue.append((headers[REPLY_INBOX], int(reply.split(".")[5])))
            wake.set()

        generation = Generation(self.connection, again=False)
        requests = ConsumerRequests(
            self.js, SUBJECTS.requests_stream, SUBJECTS.requests(cell.key), 5.0, headers_only=False, extra={}
        )
        await requests.create(generation, on_message, {"deliver_policy": "all"})
        subject, queue, publish = SUBJECTS.commits(cell.key), cell.queue, self.connection.publish_soon
        while True:
            await wake.wait()
            wake.clear()
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), BATCH))]
                headers, payload = COMMITS[len(batch)]
                ack = await self.js.publish(
                    subject, payload, headers, expected_last_subject_sequence=cell.revision, timeout=5.0
                )
                cell.revision = ack.sequence
                for inbox, _ in batch:
                    publish(inbox, ANSWER[1], ANSWER_HEADERS)
                self.deleter.add([sequence for _, sequence in batch], self.created)

    async def _keep_tasks_alive(self) -> None:
        while True:
            for subject in list(self.tasks.values()):
                await self.connection.publish(subject, b"+WPI")
            await anyio.sleep(PROGRESS)


async def serve(url: str) -> None:
    async with Connection.connect(url) as connection, anyio.create_task_group() as group:
        with short_collections():
            await Server(connection, group).run()


async def load(url: str, drive: Callable[[Callable[[str], Awaitable[int]]], Awaitable[Any]]) -> Any:
    """Connect as a client, and let `drive` make calls: `await call(key)` returns the number of calls so far."""
    async with Connection.connect(url) as connection:
        js, owned, count = JetStream(connection), set[str](), itertools.count(1)
        while True:
            try:
                await connection.request(READY, timeout=1)
                break
            except (NoAnswerError, NoRespondersError):
                await anyio.sleep(0.05)
        run = os.urandom(8).hex()

        async def one(name: str) -> int:
            key, number = ChangeSetKey("bench", name), next(count)
            inbox, answer = connection.open_reply(timeout=30)
            headers = {**REQUEST[0], MESSAGE_ID: f"{key}.{run}-{number:09}#0123456789abcdef", REPLY_INBOX: inbox}
            await js.publish(SUBJECTS.requests(key), REQUEST[1], headers, timeout=5.0)
            if name not in owned:
                owned.add(name)
                await connection.publish(SUBJECTS.task(key))
            await answer
            connection.close_reply(inbox)
            return number

        return await drive(one)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[2]))
