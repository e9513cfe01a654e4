"""Damaged messages through a real server, as any client could send them, between good ones.

What must hold in the end: the server runs and had no error of its own, every good request is applied, nothing waits, and
each message that was stored was applied or is among the dead letters with a reason.
"""

import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream, Msg
from rebaser_client.tasks import publish_task
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.subjects import Subjects
from rebaser_core.updates import Derive
from tests.acceptance.fleet import NO_SPARK, ServerProcess, launched
from tests.benchmarks.requests import wait_for_server
from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import damaged_tree, messages

WORKSPACE = "fuzz"
CHANGE_SETS = 20
GOOD_EVERY = 50  # damaged messages between two good requests
WINDOW = 256  # messages on their way
MAX_PAYLOAD = 16 * 1024
LIMIT = 600.0  # seconds without an answer until something counts as blocked
SUBJECTS = Subjects()
TOKENS = ("a", "é", "x" * 65, "$JS", "-", "{}", "😀", "\u00a0", "process")


class Fuzz:
    """Sends, and keeps count."""

    def __init__(self, connection: Connection, client: RebaserClient, seed: int) -> None:
        self.connection = connection
        self.js = JetStream(connection)
        self.client = client
        self.counts: Counter[str] = Counter()
        self.good = dict.fromkeys((f"c{number}" for number in range(CHANGE_SETS)), 0)
        self._chance = random.Random(seed)
        self._mutator = Mutator(self._chance)
        self._valid = messages("EnqueueUpdatesRequest")
        self._waiting: deque[tuple[str, "anyio.abc.Future[Msg]"]] = deque()

    async def send(self, count: int) -> None:
        for number in range(count):
            await self._send_one(number)
            if number % GOOD_EVERY == 0:
                await self._send_good(self._chance.choice(list(self.good)))
        await self._settle(0)

    async def _send_one(self, number: int) -> None:
        change_set = self._chance.choice(list(self.good))
        subject = SUBJECTS.requests(ChangeSetKey(WORKSPACE, change_set))
        headers, payload = self.damaged(number, change_set)
        if number % 100 == 0:
            subject = f"rebaser.tasks.{self._token()}.{self._token()}.process"
        await self._settle(WINDOW - 1)
        inbox, answer = self.connection.open_reply()
        try:
            await self.connection.publish(subject, payload[:MAX_PAYLOAD], headers, reply=inbox)
        except RebaserError:  # no message: a header that the wire cannot carry
            self.connection.close_reply(inbox)
            self.counts["not sendable"] += 1
            return
        self._waiting.append((inbox, answer))

    async def _settle(self, room: int) -> None:
        while len(self._waiting) > room:
            inbox, answer = self._waiting.popleft()
            with anyio.fail_after(LIMIT):
                message = await answer
            self.connection.close_reply(inbox)
            kind = "tasks" if b"_TASKS" in message.data else "requests"
            self.counts["refused by NATS" if b'"error"' in message.data else f"stored {kind}"] += 1

    async def _send_good(self, change_set: str) -> None:
        """A good request, and the task, which the one who sent the damaged ones did not care for."""
        self.good[change_set] += 1
        number = self.good[change_set]
        with anyio.fail_after(LIMIT):
            await self.client.enqueue_updates(WORKSPACE, change_set, [Set("good", number)], timeout=LIMIT)

    def damaged(self, number: int, change_set: str) -> tuple[dict[str, str], bytes]:
        mutator, chance = self._mutator, self._chance
        if mutator.often(0.7):
            updates = (Set(f"v{number % 50}", number), Derive("d", "cel", {"a": "v1"}, {"expr": "a + 1"}))
            headers, payload = encode(EnqueueUpdatesRequest(f"r{number}", WORKSPACE, change_set, updates))
        else:
            headers, payload = chance.choice(self._valid)
        headers = dict(headers)
        if mutator.often(0.7):
            payload = damaged_tree(mutator, payload, as_json=headers["X-CONTENT-TYPE"] == "application/json")
        if mutator.often(0.3):
            payload = mutator.bytes(payload)
        if mutator.often(0.1):
            name = chance.choice([*headers, "X-Reply-Inbox", "Nats-Rollup", "Nats-Expected-Stream", "Nats-TTL", "X-Ä"])
            headers[name] = mutator.text(headers.get(name, "_INBOX.a"))
        return {name: value.encode(errors="replace").decode() for name, value in headers.items()}, payload

    def _token(self) -> str:
        return self._chance.choice(TOKENS)


@asynccontextmanager
async def installation() -> AsyncIterator[tuple[str, ServerProcess]]:
    """A NATS server and one daemon, which holds what it cannot decide for a moment only."""
    settings = {"spark": NO_SPARK, "retry_for": 0.2, "log_level": "error", "quiescent_period": 2}
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, launched(nats.url, "fuzzed", **settings) as server:
            await wait_for_server(nats.url, warm=False)
            yield nats.url, server


async def fuzz_messages(count: int, seed: int) -> str:
    """Send `count` damaged messages; returns a report, raises `AssertionError` for what must not be."""
    began = time.monotonic()
    async with (
        installation() as (url, server),
        RebaserClient.connect(url) as client,
        Connection.connect(url) as connection,
    ):
        fuzz = Fuzz(connection, client, seed)
        await fuzz.send(count)
        sent = time.monotonic() - began
        for change_set in fuzz.good:
            await publish_task(fuzz.js, SUBJECTS, ChangeSetKey(WORKSPACE, change_set))
            last = await client.enqueue_updates_with_reply(WORKSPACE, change_set, [Set("last", seed)], timeout=LIMIT)
            assert last.status
        await _drained(fuzz.js)
        assert server.process.returncode is None, "the server ended"
        assert not server.events, server.events[:3]
        outcomes = await _outcomes(client, fuzz)
        letters = (await fuzz.js.stream_info(SUBJECTS.dlq_stream)).messages
    assert letters == outcomes["dead"], f"{letters} dead letters, {outcomes['dead']} dead requests"
    counts = ", ".join(f"{number} {what}" for what, number in sorted((fuzz.counts + outcomes).items()))
    good = sum(fuzz.good.values()) + CHANGE_SETS
    total = time.monotonic() - began
    return (
        f"seed {seed}: {count} damaged messages, {good} good requests between them, all applied; {counts}; "
        f"{sent:.0f} s to send, {total:.0f} s in all, {count / total:.0f}/s"
    )


async def _drained(js: JetStream) -> None:
    """Return when no request is left: deletes follow the answers."""
    with anyio.fail_after(LIMIT):
        while (await js.stream_info(SUBJECTS.requests_stream)).messages:
            await anyio.sleep(0.1)


async def _outcomes(client: RebaserClient, fuzz: Fuzz) -> Counter[str]:
    """What the logs say became of the requests; checks that what was good is there."""
    found: Counter[str] = Counter()
    for change_set, good in fuzz.good.items():
        state = await client.state(WORKSPACE, change_set)
        values = state.values()
        assert "last" in values, f"{change_set} is blocked"
        assert not good or "good" in values
        async for commit in client.watch(WORKSPACE, change_set, after=0):
            found.update(decision.outcome.value for decision in commit.requests)
            if commit.sequence >= state.last:
                break
    return found
