"""Sends damaged messages to a real server, as any client could, between valid ones.

Each change set has a sender of its own: it sends some damaged messages, then a valid request, whose answer must come
within `LIMIT`. At the end, the server is still the same process and has logged no error of its own. Each valid request
is in the log once, as a success, in the order of sending. No request waits, and no task is left except those of change
sets that owe a DVU (there is no Spark here). The dead letters are exactly the requests that the logs call dead, and
messages that named no change set.
"""

import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import cbor2

from rebaser.embedded.nats import embedded_nats
from rebaser.sweeper.unroutable import UNROUTABLE_KEY
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream, Msg
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, Success, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive
from tests.benchmarks.requests import wait_for_server
from tests.fuzz.message_targets import damaged_tree, messages
from tests.fuzz.mutate import Mutator
from tests.fuzz.wire import RawPublisher
from tests.support.fleet import NO_SPARK, ServerProcess, launched
from tests.support.history import check_history, commits_of

WORKSPACE = "fuzz"
CHANGE_SETS = 128  # maximum; there is one for each 250 messages
HONEST_EVERY = 25  # damaged messages between two valid requests of a change set
MAX_PAYLOAD = 16 * 1024
LIMIT = 240.0  # seconds without an answer until a sender counts as blocked
SUBJECTS = Subjects()
INBOXES = (
    "rebaser.commits.fuzz.c0", "rebaser.requests.fuzz.c1", "rebaser.tasks.fuzz.c1.process", "rebaser.dlq.fuzz.c0",
    "$JS.API.STREAM.PURGE.REBASER_COMMITS", "$JS.API.STREAM.DELETE.REBASER_REQUESTS", "$O.REBASER_BLOBS.C.x",
    "_INBOX.>", "_INBOX.*", "_INBOX.a.b", "_INBOX..a", "",
)  # fmt: skip
HEADERS = (
    "X-Reply-Inbox", "Nats-Rollup", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-TTL", "Nats-Msg-Id",
    "X-Redrive", "X-Applied", "X-Debt", "X-Payload-Address", "X-Ä",
)  # fmt: skip
ADDRESSES = ("sha256:" + "0" * 64, "sha256:" + "f" * 64, "../../etc/passwd", "", "file:///dev/zero", "x" * 5000)
TOKENS = (  # none of these can name a change set
    b"*", b">", b"x*", b"\xff", b"a\xffb", "é".encode(), b"x" * 65, b"x" * 900, b"$JS", b"a\x0bb", b"\x00", b"\x7f",
    b"a.b",
)  # fmt: skip


class Fuzz:
    """Sends messages, and counts them."""

    def __init__(
        self, connection: Connection, raw: RawPublisher, client: RebaserClient, seed: int, change_sets: int
    ) -> None:
        self.connection = connection
        self.raw = raw
        self.client = client
        self.counts: Counter[str] = Counter()
        self.honest: dict[str, list[str]] = {f"c{number}": [] for number in range(change_sets)}
        self.slowest = 0.0
        self._chance = random.Random(seed)
        self._mutator = Mutator(self._chance)
        self._valid = messages("EnqueueUpdatesRequest")
        self._number = count()
        self._end = 0.0

    async def send(self, total: int, seconds: float) -> None:
        """Run all senders concurrently until `total` messages are sent or the time is over."""
        self._end = time.monotonic() + seconds
        async with anyio.create_task_group() as group:
            for change_set in self.honest:
                group.start_soon(self._sender, change_set, total)

    async def _sender(self, change_set: str, total: int) -> None:
        sending = True
        while sending:
            waiting: deque[tuple[str, Awaitable[Msg]]] = deque()
            for _ in range(HONEST_EVERY):
                sending = next(self._number) < total and time.monotonic() < self._end
                if not sending:
                    break
                await self._send_damaged(change_set, waiting)
            await self._settle(waiting)
            await self._send_honest(change_set)

    async def _send_damaged(self, change_set: str, waiting: deque[tuple[str, Awaitable[Msg]]]) -> None:
        self.counts["damaged"] += 1
        subject, (headers, payload) = SUBJECTS.requests(ChangeSetKey(WORKSPACE, change_set)), self._damaged(change_set)
        payload = payload[:MAX_PAYLOAD]
        inbox, answer = self.connection.open_reply()
        try:
            if self._mutator.often(0.02):
                strange = self._strange_subject(change_set)
                await self.raw.publish(strange, payload, headers, inbox)
                if b"a.b" in strange:  # With one token too many, no stream accepts the subject, so nothing answers.
                    self.connection.close_reply(inbox)
                    self.counts["of no stream"] += 1
                    return
            else:
                await self.connection.publish(subject, payload, headers, reply=inbox)
        except RebaserError:  # a header that the protocol of NATS cannot carry
            self.connection.close_reply(inbox)
            self.counts["not sendable"] += 1
            return
        waiting.append((inbox, answer))

    async def _settle(self, waiting: deque[tuple[str, Awaitable[Msg]]]) -> None:
        for inbox, answer in waiting:
            with anyio.fail_after(LIMIT):
                message = await answer
            self.connection.close_reply(inbox)
            if b'"error"' in message.data or not message.data:
                self.counts["refused by NATS"] += 1
            else:
                self.counts["stored as a task" if b"_TASKS" in message.data else "stored"] += 1

    async def _send_honest(self, change_set: str) -> None:
        began = time.monotonic()
        updates = [Set("honest", len(self.honest[change_set]) + 1)]
        reply = await self.client.enqueue_updates_with_reply(WORKSPACE, change_set, updates, timeout=LIMIT)
        assert isinstance(reply.status, Success)
        self.honest[change_set].append(reply.id)
        self.slowest = max(self.slowest, time.monotonic() - began)

    # -- damage ----------------------------------------------------------------------------------------------------

    def _damaged(self, change_set: str) -> tuple[dict[str, str], bytes]:
        mutator, chance, number = self._mutator, self._chance, self.counts["damaged"]
        headers: dict[str, str]
        if mutator.often(0.9):
            updates = (Set(f"v{number % 50}", number), Derive("d", "cel", {"a": "v1"}, {"expr": "a + 1"}))
            headers, payload = encode(EnqueueUpdatesRequest(RequestId(f"r{number}"), WORKSPACE, change_set, updates))
        else:
            headers, payload = chance.choice(self._valid)
        headers = dict(headers)
        as_json = headers["X-CONTENT-TYPE"] == "application/json"
        match chance.randrange(20):
            case 0:  # a value that exceeds some limit
                payload = cbor2.dumps({"v2": self._body(number, change_set, updates=[self._excessive()])})
            case 1 if mutator.often(
                0.02
                # The blob that it names does not exist. The owner waits for it, gives up, and the next owner
                # loads the log again.
            ):
                address = chance.choice(ADDRESSES)
                payload = cbor2.dumps({"v2": self._body(number, change_set, updatesAddress=address)})
            case case if case < 14:
                payload = damaged_tree(mutator, payload, as_json=as_json)
        if mutator.often(0.3):
            payload = mutator.damaged(payload)
        if mutator.often(0.1):
            name = chance.choice(HEADERS)
            headers[name] = chance.choice(INBOXES) if mutator.often(0.5) else mutator.text(chance.choice(INBOXES))
        elif mutator.often(0.05):
            name = chance.choice([*headers])
            headers[name] = mutator.text(headers[name]) if mutator.often(0.98) else "99"
        return {name: value.encode(errors="replace").decode() for name, value in headers.items()}, payload

    @staticmethod
    def _body(number: int, change_set: str, **fields: object) -> dict[str, object]:
        return {"id": f"r{number}", "workspaceId": WORKSPACE, "changeSetId": change_set, **fields}

    def _excessive(self) -> dict[str, Any]:
        deep: Any = 1
        for _ in range(self._chance.choice((50, 64, 65, 72, 73, 500))):
            deep = [deep] if self._mutator.often(0.5) else {"a": deep}
        value = self._chance.choice((deep, list(range(5000)), "x" * 15_000, {str(n): n for n in range(1000)}))
        return {"op": "set", "id": "x" * self._chance.choice((1, 512, 513)), "value": value}

    def _strange_subject(self, change_set: str) -> bytes:
        """Return a subject that a stream accepts although it names no change set, or a subject that no stream
        accepts."""
        workspace, name = self._chance.choice(TOKENS), self._chance.choice((*TOKENS, WORKSPACE.encode()))
        kinds = (b"rebaser.requests.%s.%s", b"rebaser.tasks.%s.%s.process", b"rebaser.tasks.fuzz.%s.process")
        kind = self._chance.choice(kinds)
        return kind % change_set.encode() if kind.count(b"%") == 1 else kind % (workspace, name)


@asynccontextmanager
async def installation() -> AsyncIterator[tuple[str, ServerProcess]]:
    """Run a NATS server and one Rebaser server, which holds undecidable requests only for a moment."""
    settings = {"spark": NO_SPARK, "retry_for": 0, "log_level": "error", "quiescent_period": 1}
    settings |= {"sweep_interval": 1, "checkpoint_bytes": 1 << 40}  # keeps the whole log, which is read at the end
    with tempfile.TemporaryDirectory() as folder:
        async with (
            embedded_nats(Path(folder)) as nats,
            # A forked process shares memory, and its figures of memory would say little.
            launched(nats.url, "fuzzed", python=sys.executable, **settings) as server,  # type: ignore[arg-type]
        ):
            with anyio.fail_after(LIMIT):
                await wait_for_server(nats.url, warm=False)
            yield nats.url, server


async def fuzz_messages(total: int, seed: int, seconds: float = math.inf, every: float = 60.0) -> str:
    """Send `total` damaged messages, or as many as `seconds` allow, and return a report.

    Raises `AssertionError` for violations, and `TimeoutError` if nothing makes progress. Prints the progress every
    `every` seconds.
    """
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        url, server = await stack.enter_async_context(installation())
        client = await stack.enter_async_context(RebaserClient.connect(url))
        connection = await stack.enter_async_context(Connection.connect(url))
        raw = await stack.enter_async_context(RawPublisher.connect(url))
        fuzz = Fuzz(connection, raw, client, seed, max(1, min(total // 250, CHANGE_SETS)))
        before = memory_of(server)
        async with anyio.create_task_group() as group:
            group.start_soon(_tell, fuzz, server, every)
            await fuzz.send(total, seconds)
            group.cancel_scope.cancel()
        after = memory_of(server)
        js = JetStream(connection)
        await _drained(js)
        outcomes = await _outcomes(fuzz)
        await _left(js, fuzz)
        strays, letters = await _letters(js)
        # A copy of a decided request with other content is not decided: it is answered, and goes to the dead letters.
        reused = [letter async for letter in client.dead_letters.find(code="request_id_reused")]
        assert server.process.returncode is None, "the server ended"
        # A busy machine may block the event loop or NATS, which is no error of the server.
        errors = [event for event in server.events if "exception" in event or event["event"] == "requests_skipped"]
        assert not errors, errors[:3]
    undecided = letters - outcomes["dead"]
    assert 0 <= undecided <= len(reused), f"{letters} dead letters, {outcomes['dead']} dead requests, {reused}"
    counts = ", ".join(f"{number} {what}" for what, number in sorted((fuzz.counts + outcomes).items()))
    took = time.monotonic() - began
    return (
        f"seed {seed}: {counts}, {strays} that named no change set; {sum(map(len, fuzz.honest.values()))} honest "
        f"requests, all applied once, slowest answer {fuzz.slowest:.1f} s; server {before} MiB before, {after} MiB "
        f"after; {took:.0f} s, {fuzz.counts['damaged'] / took:.0f}/s"
    )


def memory_of(server: ServerProcess) -> int:
    """Return the resident memory in MiB."""
    command = ["ps", "-o", "rss=", "-p", str(server.process.pid)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) // 1024


async def _tell(fuzz: Fuzz, server: ServerProcess, every: float) -> None:
    while True:
        await anyio.sleep(every)
        print(
            f"{fuzz.counts['damaged']} damaged, slowest answer {fuzz.slowest:.1f} s, server {memory_of(server)} MiB",
            flush=True,
        )


async def _drained(js: JetStream) -> None:
    """Return when no request is left: deletes follow the answers, and the sweeper moves requests that named no change
    set."""
    with anyio.fail_after(LIMIT):
        while (await js.stream_info(SUBJECTS.requests_stream)).messages:  # noqa: ASYNC110 - servers change it
            await anyio.sleep(0.1)


async def _left(js: JetStream, fuzz: Fuzz) -> None:
    """Return when no change set has a task except those that owe a DVU and therefore wait for Spark.

    Tasks with a token `>` also stay: NATS stores them, but delivers them to no consumer, and they do no harm.
    """
    owing = {name for name in fuzz.honest if (await fuzz.client.state(WORKSPACE, name)).owes}
    expected = {SUBJECTS.task(ChangeSetKey(WORKSPACE, name)) for name in owing}
    with anyio.fail_after(LIMIT):
        while {  # noqa: ASYNC110 - as above
            subject for subject in await js.subject_counts(SUBJECTS.tasks_stream, ">") if ">" not in subject
        } != expected:
            await anyio.sleep(0.1)


async def _letters(js: JetStream) -> tuple[int, int]:
    """Return the number of dead letters of requests that named no change set, and of all others."""
    counts = await js.subject_counts(SUBJECTS.dlq_stream, ">")
    strays = counts.pop(SUBJECTS.dlq(UNROUTABLE_KEY), 0)
    return strays, sum(counts.values())


async def _outcomes(fuzz: Fuzz) -> Counter[str]:
    """Count the outcomes in the logs, and check each valid request."""
    found: Counter[str] = Counter()
    for change_set, honest in fuzz.honest.items():
        commits = await commits_of(fuzz.client, WORKSPACE, change_set)
        check_history(commits)
        decisions = [decision for commit in commits for decision in commit.requests]
        ours = set(honest)
        applied = [one.request_id for one in decisions if one.request_id in ours and one.outcome.value == "success"]
        assert applied == honest, f"{change_set}: a valid request is missing, decided twice, or out of order"
        assert (await fuzz.client.values(WORKSPACE, change_set))["honest"].value == len(honest)
        found.update(decision.outcome.value for decision in decisions)
    return found
