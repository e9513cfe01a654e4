"""The client: sends updates, waits for what becomes of them, reads values, follows commits.

Invariant: a request is durable (its ack awaited) before its change set is woken, and a request id that was handed out
stays good: sending the same one again is answered, never applied twice.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup

from rebaser_client.acks import TaskAcks, watch_task_acks
from rebaser_client.blobs import BlobStore, open_blobs
from rebaser_client.covers import Covers
from rebaser_client.dead_letters import DeadLetterBox
from rebaser_client.entries import Entry, read_entries
from rebaser_client.entries import Kind as EntryKind
from rebaser_client.entries import Start as EntryStart
from rebaser_client.errors import RequestRejected, RequestTimeout
from rebaser_client.jetstream import Connection, JetStream, Msg
from rebaser_client.log_reader import LogReader
from rebaser_client.overview import Overview, read_overview
from rebaser_client.pressure import Pressure
from rebaser_client.sender import Outgoing, Sender, no_stream_means_not_ready
from rebaser_client.unanswered import Unanswered
from rebaser_client.waker import Waker
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, check_token, ulid
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.messages import (
    DvuProgress,
    EnqueueUpdatesResponse,
    Failure,
    Success,
    decode,
)
from rebaser_core.state import ChangeSetState
from rebaser_core.subjects import Subjects
from rebaser_core.updates import Recompute, Update
from rebaser_core.values import Value

Wait: TypeAlias = Literal["applied", "derived"]

SEND_AGAIN_BOUND = 5.0  # seconds; after that it waits for the next look


class RebaserClient:
    """A connection to one installation. Safe to share between the tasks of an event loop.

    Make one with `connect`:

        async with RebaserClient.connect("nats://127.0.0.1:4222") as client:
            await client.enqueue_updates("shop", "main", [Set("price", 9.5)])
    """

    def __init__(
        self, connection: Connection, subjects: Subjects, blobs: BlobStore, limits: Limits, group: TaskGroup
    ) -> None:
        self._connection = connection
        self._js = JetStream(connection)
        self._subjects = subjects
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._reader = LogReader(self._js, subjects, blobs)
        self._id_time = self._id_random = 0
        self._waker = Waker(self._js, subjects, group)
        self._covers = Covers(self._reader, group)
        pressure = Pressure(self._loop.time)
        self._sender = Sender(self._js, subjects, blobs, limits, pressure)
        self._unanswered = Unanswered(self._js, subjects, group, self._send_again)
        self.dead_letters = DeadLetterBox(self._js, subjects, blobs, pressure)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str = "nats://127.0.0.1:4222",
        *,
        prefix: str = "",
        blobs: str | None = None,
        inbox_prefix: str = "_INBOX",
        creds: Path | None = None,
        token: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> AsyncIterator[Self]:
        """Connect to NATS at `url` (several: separated by commas).

        `prefix` and `blobs` must be those of the servers. Raises `NotConnectedError` if nobody answers.
        """
        subjects = Subjects(prefix)
        failure: Exception | None = None
        async with (
            Connection.connect(url, name="rebaser-client", inbox_prefix=inbox_prefix, creds=creds, token=token) as nats,
            anyio.create_task_group() as group,
        ):
            store = open_blobs(blobs, JetStream(nats), subjects.blobs_bucket)
            try:
                yield cls(nats, subjects, store, limits, group)
            except Exception as error:  # noqa: BLE001 - raised again below, free of the group that it passed through
                failure = error
            finally:
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def enqueue_updates(
        self,
        workspace: str,
        change_set: str,
        updates: Iterable[Update],
        *,
        request_id: str | None = None,
        from_change_set: str | None = None,
        recompute: Recompute | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109 - the error must carry the request id
    ) -> str:
        """Store a request, durably, and wake its change set; returns its id. `timeout` is seconds.

        The id may be given, to send a request again that may or may not have arrived. `recompute`: derived values to be
        computed anew after the updates, all or those of a function, though nothing that they rest on changed.

        Raises `UnprocessableError` for an invalid update (`TooLarge` for too much at once), `QueueFull`,
        `NotReadyError`, `NotConnectedError`, or `RequestTimeout` (with the id: it may still be applied). That nobody
        could be woken is no error: the request is stored, and the sweeper will find it.
        """
        key = ChangeSetKey.of(workspace, change_set)
        request_id = self._request_id(request_id)
        deadline = self._loop.time() + timeout
        try:
            request = await self._sender.prepare(
                key, request_id, updates, from_change_set=from_change_set, recompute=recompute
            )
            await self._sender.store(request, deadline)
        except TimeoutError:
            raise RequestTimeout(request_id, timeout) from None
        with anyio.move_on_after(deadline - self._loop.time()):
            await self._waker.wake(key)
        return request_id

    async def enqueue_updates_with_reply(
        self,
        workspace: str,
        change_set: str,
        updates: Iterable[Update],
        *,
        wait: Wait = "applied",
        timeout: float = 60.0,  # noqa: ASYNC109 - the error must carry the request id
        request_id: str | None = None,
        from_change_set: str | None = None,
        recompute: Recompute | None = None,
    ) -> EnqueueUpdatesResponse:
        """Send a request and wait until its commit is durable (`applied`) or covered by a DVU (`derived`).

        Raises as `enqueue_updates`, and `RequestRejected` if the request cannot be processed.
        """
        key = ChangeSetKey.of(workspace, change_set)
        request_id = self._request_id(request_id)
        deadline = self._loop.time() + timeout
        inbox, reply = self._connection.open_reply()
        # A timer, not a cancel scope: this is the hot path, and a scope costs as much as encoding the request.
        timer = self._loop.call_at(deadline, _expire, reply)
        request: Outgoing | None = None
        try:
            request = await self._sender.prepare(
                key, request_id, updates, from_change_set=from_change_set, recompute=recompute, inbox=inbox
            )
            await self._sender.store(request, deadline)
            self._waker.start_unless_answered(key, reply)
            self._unanswered.add(request)
            message = await reply
            self._unanswered.remove(request)  # a DVU may take its time
            self._waker.answered(key)
            response = decode(message.headers, message.data, self._limits, expect=EnqueueUpdatesResponse)
            if wait == "derived" and isinstance(response.status, Success):
                with anyio.fail_after(deadline - self._loop.time()):
                    await self._covers.wait(key, response.status.commit)
        except TimeoutError:
            raise RequestTimeout(request_id, timeout) from None
        finally:
            timer.cancel()
            self._connection.close_reply(inbox)
            if request is not None:
                self._unanswered.remove(request)
        if isinstance(response.status, Failure):
            raise RequestRejected(request_id, response)
        return response

    async def recompute(
        self,
        workspace: str,
        change_set: str,
        function: str | None = None,
        *,
        wait: Wait = "derived",
        timeout: float = 60.0,  # noqa: ASYNC109 - the error must carry the request id
        request_id: str | None = None,
    ) -> EnqueueUpdatesResponse:
        """Have all derived values computed anew, or those of `function` (say, because its code changed), and wait.

        What depends on them follows if they turn out different. Raises as `enqueue_updates_with_reply`;
        `RequestRejected` with code `nothing_to_recompute` where nothing is so derived.
        """
        asked = Recompute(function)
        return await self.enqueue_updates_with_reply(
            workspace, change_set, (), wait=wait, timeout=timeout, request_id=request_id, recompute=asked
        )

    async def exists(self, workspace: str, change_set: str) -> bool:
        """Whether anything was ever asked of the change set."""
        key, subjects = ChangeSetKey.of(workspace, change_set), self._subjects
        with no_stream_means_not_ready():
            # In this order: a request leaves the queue after its commit.
            waiting = await self._js.next(subjects.requests_stream, subjects.requests(key), 1)
            return (
                waiting is not None or await self._js.last(subjects.commits_stream, subjects.commits(key)) is not None
            )

    async def values(self, workspace: str, change_set: str) -> dict[str, Value]:
        """All values by id, as of the newest commit; empty for a change set that nobody wrote to."""
        return (await self.state(workspace, change_set)).values()

    async def state(self, workspace: str, change_set: str) -> ChangeSetState:
        """The folded state as of the newest commit: values with their definitions, and what is owed."""
        with no_stream_means_not_ready():
            return (await self._reader.load(ChangeSetKey.of(workspace, change_set))).state

    async def watch(self, workspace: str, change_set: str, *, after: int | None = None) -> AsyncIterator[Commit]:
        """Commits as they are appended, their deltas included: those behind log sequence `after`, or from now on.

        Commits below the checkpoint before the current one are purged; a watcher that comes later begins behind them.
        """
        key = ChangeSetKey.of(workspace, change_set)
        with no_stream_means_not_ready():
            if after is None:
                last = await self._reader.last(key)
                after = 0 if last is None else last.sequence
            async for commit in self._reader.follow(key, after):
                yield await self._reader.with_delta(commit)

    async def watch_progress(
        self, workspace: str | None = None, change_set: str | None = None
    ) -> AsyncGenerator[DvuProgress, None]:
        """How far updates are that take some seconds or more; of one change set, of a workspace, or of all.

        Best effort: told now and then by who computes, and kept nowhere. That one has ended is told by its commit.
        """
        names = (workspace, "workspace"), (change_set, "change set")
        tokens = ["*" if name is None else check_token(name, what) for name, what in names]
        async with self._connection.subscribe(self._subjects.progress(*tokens)) as told:
            async for message in told:
                try:
                    yield decode(message.headers, message.data, self._limits, expect=DvuProgress)
                except RebaserError:
                    continue  # of a newer server, or none of ours

    async def wait_covered(
        self,
        workspace: str,
        change_set: str,
        commit: int,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109 - part of the client's vocabulary
    ) -> None:
        """Return when derived values are true as of the commit at log sequence `commit`; raises `TimeoutError`."""
        with anyio.fail_after(timeout):
            await self._covers.wait(ChangeSetKey.of(workspace, change_set), commit)

    async def entries(
        self,
        kind: EntryKind,
        workspace: str | None = None,
        change_set: str | None = None,
        *,
        start: EntryStart = "all",
        follow: bool = False,
    ) -> AsyncGenerator[Entry, None]:
        """What a stream holds (commits, requests that wait, dead letters), as `rebaser tail` shows it; see there."""
        with no_stream_means_not_ready():
            async for entry in read_entries(
                self._js, self._subjects, kind, workspace, change_set, start=start, follow=follow
            ):
                yield entry

    async def status(self, workspace: str | None = None) -> Overview:
        """Servers that answer, change sets with what they wait for, and the streams."""
        if workspace is not None:
            check_token(workspace, "workspace")
        return await read_overview(self._connection, self._js, self._subjects, self._reader, workspace)

    async def task_acks(self, seconds: float) -> TaskAcks:
        """Listen for `seconds` to what NATS tells about finished tasks; the setting `ack_sample` has it told."""
        with no_stream_means_not_ready():
            return await watch_task_acks(self._js, self._subjects, seconds)

    # -- publishing ------------------------------------------------------------------------------------------------

    def _request_id(self, given: str | None) -> str:
        """`given`, checked, or a new ULID; within a millisecond its random part counts up, as the format has it."""
        if given is not None:
            return check_token(given, "request id")
        now = time.time_ns() // 1_000_000
        if now > self._id_time:
            self._id_time, self._id_random = now, int.from_bytes(os.urandom(9), "big")  # 72 bits: room to count
        self._id_random += 1
        return ulid(self._id_time, self._id_random.to_bytes(10, "big"))

    async def _send_again(self, request: Outgoing) -> None:
        await self._sender.store(request, self._loop.time() + SEND_AGAIN_BOUND)
        self._waker.start(request.key)


def _expire(reply: asyncio.Future[Msg]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())
