"""The loops of a server beside its owners continue after an error, and at its end everything is given back."""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from rebaser import server as server_module
from rebaser.change_set.lease import Task
from rebaser.change_set.lifecycle import Reason
from rebaser.crowd import find_idle
from rebaser.server import HANDOVER_DELAY, Server
from rebaser.settings import Settings
from rebaser_client.jetstream import JetStream, PullMessage
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEYS = [ChangeSetKey("ws", name) for name in "abcdef"]


@pytest.fixture
def server(js: JetStream, subjects: Subjects) -> Server:
    return Server(context_of(js, subjects, Settings(server_id="test", concurrency=4, turn=100.0), Engine()))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the server's loops, which take no time here."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)
        await anyio.lowlevel.checkpoint()

    anyio_of_server = SimpleNamespace(**vars(anyio) | {"sleep": pause})
    monkeypatch.setattr(server_module, "anyio", anyio_of_server)
    return made


def task_of(js: JetStream, subjects: Subjects, key: ChangeSetKey, sequence: int) -> Task:
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.{sequence}.{sequence}.1.0"
    return Task(key, PullMessage(subjects.task(key), reply, b"", None, js), js)


async def test_tasks_stay_in_progress_after_a_report_that_failed(
    server: Server, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """Otherwise, NATS would give them to another server while this one owns their change sets."""
    reported: list[int] = []
    tries, all_reported = itertools.count(1), anyio.Event()

    async def progress_all(_: JetStream, messages: Sequence[PullMessage]) -> None:
        if next(tries) == 1:
            raise TransientError("no connection")
        reported.extend(message.stream_sequence for message in messages)
        if set(reported) == {1, 2, 3}:
            all_reported.set()

    monkeypatch.setattr(JetStream, "progress_all", progress_all)
    for sequence, key in enumerate(KEYS[:2], 1):
        server._successor_tasks[key] = task_of(js, subjects, key, sequence)
    server._held[KEYS[2]] = task_of(js, subjects, KEYS[2], 3)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(server._keepalive_loop)
            await all_reported.wait()
            group.cancel_scope.cancel()
    ack_wait = server._context.settings.ack_wait
    assert all(0 < seconds <= ack_wait / 3 for seconds in pauses), "two reports may be lost"


class Holder:
    """An owner, as far as the server asks it to yield. Times are seconds of the server's clock."""

    def __init__(self, *, idle: float = 0.0, since: float = 0.0, active_at: float = 0.0) -> None:
        self.lifecycle = SimpleNamespace(holds_slot=True, active_at=active_at, stopping=None)
        self.since = since
        self.stopped: list[Reason] = []
        self._idle = idle

    def idle_for(self, _: float) -> float:
        return self._idle

    def stop(self, reason: Reason) -> None:
        self.stopped.append(reason)


@pytest.mark.parametrize(("waiting", "yielding"), [(0, ""), (1, "b"), (2, "bd"), (3, "bde"), (9, "abde")])
async def test_as_many_owners_yield_as_tasks_wait(
    server: Server, js: JetStream, monkeypatch: pytest.MonkeyPatch, waiting: int, yielding: str
) -> None:
    """Idle owners yield first, then those whose turn began first; an owner whose turn is not over never yields."""
    now = 1000.0
    holders = {
        "a": Holder(since=now - 200),
        "b": Holder(idle=50.0, since=now - 1, active_at=now - 50),
        "c": Holder(since=now - 50),
        "d": Holder(idle=40.0, since=now - 500, active_at=now - 40),
        "e": Holder(since=now - 300),
    }
    server._owners = cast("Any", OrderedDict((ChangeSetKey("ws", name), holder) for name, holder in holders.items()))
    answers = [TransientError("no answer"), SimpleNamespace(num_pending=waiting, num_waiting=0)]

    async def consumer_info(*_: object) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(js, "consumer_info", consumer_info)
    server._context = replace(server._context, now=lambda: now)
    await server._check_crowd()  # not answered
    await server._check_crowd()
    assert {name: holder.stopped for name, holder in holders.items() if holder.stopped} == {
        name: [Reason.YIELD] for name in yielding
    }


async def test_a_task_that_is_left_to_newer_servers_is_offered_to_them_after_a_while(
    server: Server, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, it would come back again and again for as long as there is no newer server."""
    delays: list[float] = []

    async def nak(_: JetStream, __: PullMessage, delay: float = 0.0) -> None:
        delays.append(delay)

    monkeypatch.setattr(JetStream, "nak", nak)
    server._declined_until[KEYS[0]] = server._context.now() + 60
    async with anyio.create_task_group() as server._group:
        server._accept(task_of(js, subjects, KEYS[0], 1).message)
    assert delays == [HANDOVER_DELAY]
    assert not server._owners


async def test_a_server_that_stops_deletes_what_it_has_decided(
    server: Server, monkeypatch: pytest.MonkeyPatch, js: JetStream
) -> None:
    deleted: list[int] = []

    async def delete_many(_: str, sequences: list[int]) -> None:
        deleted.extend(sequences)

    monkeypatch.setattr(js, "delete_many", delete_many)
    server._context.deleter.add([3, 4], "created")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await server._shut_down(group)
    assert deleted == [3, 4]


class Holding:
    """An owner, as far as the server ends it. `tell` is called by its first step."""

    def __init__(self, tell: Callable[[], object] = lambda: None) -> None:
        self.told: list[object] = []
        self.scope = anyio.CancelScope()
        self.lifecycle = SimpleNamespace(holds_slot=False)
        self._tell = tell

    def stop(self, reason: Reason) -> None:
        self.told.append(reason)
        self._tell()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            self.told.append(name)
            self._tell()

        return call


async def test_an_owner_that_does_not_end_in_time_is_abandoned(js: JetStream, subjects: Subjects) -> None:
    """Otherwise, an append that is never answered would keep the server from ending."""
    server = Server(context_of(js, subjects, Settings(server_id="test", shutdown_grace=0.01), Engine()))
    owner = Holding()
    server._owners = cast("Any", OrderedDict({KEYS[0]: owner}))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await server._shut_down(group)
    assert owner.told == [Reason.SHUTDOWN, "abandon"]
    assert owner.scope.cancel_called


async def test_a_server_ends_although_it_cannot_stop_pulling(js: JetStream, subjects: Subjects) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    owner = Holding()
    server._owners = cast("Any", OrderedDict({KEYS[0]: owner}))

    async def stop() -> None:
        raise OSError("broken")

    server._pull = cast("Any", SimpleNamespace(stop=stop))
    group = SimpleNamespace(cancel_scope=anyio.CancelScope())
    with pytest.raises(OSError, match="broken"):
        await server._shut_down(cast("Any", group))
    assert owner.scope.cancel_called
    assert (group.cancel_scope.shield, group.cancel_scope.cancel_called) == (False, True)


LOST = {
    "commits": ["log_loss", Reason.TRANSIENT],
    "requests": [Reason.TRANSIENT],
    "tasks": ["lose_task"],
    "tasks commits": ["log_loss", "lose_task"],
    "dlq": [],
}


@pytest.mark.parametrize(("lost", "told"), LOST.items(), ids=LOST)
async def test_owners_end_with_the_streams_that_they_depend_on(
    server: Server, subjects: Subjects, lost: str, told: list[object]
) -> None:
    owner = Holding()
    server._owners = cast("Any", OrderedDict({KEYS[0]: owner}))
    server.streams_lost({getattr(subjects, f"{name}_stream"): 2_000_001 for name in lost.split()})
    assert owner.told == told


@pytest.mark.parametrize("event", ["paused", "blobs recreated", "stopped"])
async def test_all_owners_are_told_although_the_first_one_frees_its_slot_at_once(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A freed slot starts a search for idle owners, which changes their order."""
    server = Server(context_of(js, subjects, Settings(server_id="test", shutdown_grace=0.01), Engine()))
    owners = OrderedDict((key, Holding(lambda: find_idle(server._owners, 0.0))) for key in KEYS)
    server._owners = cast("Any", owners)
    if event == "stopped":
        async with anyio.create_task_group() as group:
            await server._shut_down(group)
    elif event == "blobs recreated":
        server.streams_recreated(frozenset({f"OBJ_{subjects.blobs_bucket}"}))
    else:
        reported = anyio.Event()

        async def report(*_: object) -> int:
            reported.set()
            return 0

        monkeypatch.setattr("rebaser.server.keep_tasks_alive", report)
        server._kept_alive_at = -math.inf
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(server._keepalive_loop)
                await reported.wait()
                group.cancel_scope.cancel()
    told = {
        "paused": ["lose_task"],
        "blobs recreated": ["save_full_checkpoint"],
        "stopped": [Reason.SHUTDOWN, "abandon"],
    }
    assert [owner.told for owner in owners.values()] == [told[event]] * len(KEYS)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_server_that_stops_waits_for_its_owners_and_no_longer(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """This holds even if a task cannot be given back because NATS is down, and however long the grace period is."""
    nak = JetStream.nak

    async def cut_off(self: JetStream, message: PullMessage, delay: float = 0.0) -> None:
        if not connected:
            raise NotConnectedError("there is no connection to NATS")
        await nak(self, message, delay)

    with anyio.fail_after(120):
        async with serving(js, subjects, Engine(), shutdown_grace=300.0) as server:
            await js.publish(subjects.task(KEYS[0]), b"")
            while KEYS[0] not in server._owners:
                await anyio.lowlevel.checkpoint()
            server._successor_tasks[KEYS[1]] = task_of(js, subjects, KEYS[1], 7)
            monkeypatch.setattr(JetStream, "nak", cut_off)
    assert not server._owners
