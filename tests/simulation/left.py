"""Checks that nothing remains in memory by mistake: in clients whose calls have returned, in idle servers, and in
closed connections.

Some things rightly remain, within bounds: a client remembers which change sets were answered and which queues were
full, a server remembers requests of newer versions, and the hook of a client's `Resender` exists as long as its
connection. The attempt at a request that was stored twice remains until another request is decided, because no commit
mentions the second copy. Processes that were killed are not checked, because they clean up nothing.
"""

from collections.abc import Iterator
from typing import Any

import anyio

from rebaser.change_set.lifecycle import Phase, Reason
from rebaser.change_set.owner import Owner
from rebaser.change_set.processor import Processor
from rebaser.runtime.context import Context
from rebaser.server import Server
from rebaser_client import RebaserClient
from rebaser_client.jetstream import Connection
from rebaser_client.requests.resender import Resender
from rebaser_core.commit import DVU_ATTEMPT
from rebaser_core.ids import ChangeSetKey
from tests.simulation.history import Violation
from tests.simulation.loop import PROCESS, Process, State

LEFT_FOR = 40.0  # virtual seconds after which a remainder counts as a leak; a task publisher gives up after 30
LOOK_AGAIN = 0.05  # virtual seconds
close_connection = Connection._close  # the function before a run replaces it


class Left:
    """Records which servers, owners and connections are made and closed.

    During a run, `make_server` replaces `Server`, `make_owner` replaces `Owner`, and the function that `closing`
    returns replaces `Connection._close`.
    """

    def __init__(self) -> None:
        self._servers: list[tuple[Process, Server]] = []
        self._owners: list[_Ended] = []
        self._closed: list[tuple[Process, Connection, list[str]]] = []
        # Owners that could not store a dead letter, by process and change set. Their next owner stores it.
        self.unburied: set[tuple[str, ChangeSetKey]] = set()
        # True once all work is done. From then on, a connection must have no subscription when it is closed.
        self.resting = False

    def make_server(self, context: Context) -> Server:
        server = Server(context)
        self._servers.append((_process(), server))
        return server

    def make_owner(self, *given: Any, **named: Any) -> Owner:
        owner = Owner(*given, **named)
        kept = _Ended(_process(), owner)
        self._owners.append(kept)
        owner.drop_resources = kept.drop_resources  # type: ignore[method-assign]
        return owner

    def closing(self) -> Any:
        async def close(connection: Connection) -> None:
            listened = list(_subscriptions(connection)) if self.resting else []
            self._closed.append((_process(), connection, listened))
            await close_connection(connection)

        return close

    def in_servers(self) -> list[str]:
        """Return what remains in running servers that have nothing to do."""
        return [
            f"{process} at rest: {what}"
            for process, server in self._servers
            if process.state is State.RUNNING and not server._stopping
            for what in _in_server(server)
        ]

    def when_closed(self) -> list[str]:
        """Return what remains in closed connections, in stopped servers, and in owners that have ended."""
        connections = [
            f"{process} has closed its connection: {what}"
            for process, connection, listened in self._closed
            if process.state is State.RUNNING
            for what in (*listened, *_in_connection(connection))
        ]
        servers = [
            f"{process} has stopped: "
            f"it has owners of {[str(key) for key in server._owners]}, {server._slots_taken} slots"
            for process, server in self._servers
            if process.state is State.RUNNING and server._stopping and (server._owners or server._slots_taken)
        ]
        owners = [
            f"{ended.process} owns {ended.owner.key} no more: its owner has {what}"
            for ended in self._owners
            if ended.process.state is State.RUNNING and ended.owner.lifecycle.phase is Phase.DONE
            for what in _in_owner(ended.owner, ended.processor, (str(ended.process), ended.owner.key) in self.unburied)
        ]
        return connections + servers + owners


async def nothing_left(client: RebaserClient) -> None:
    """Return when nothing remains in a client whose calls have all returned. Raises `Violation` if something
    remains."""
    left = set(_in_client(client))
    with anyio.move_on_after(LEFT_FOR):
        while left:
            await anyio.sleep(LOOK_AGAIN)
            left &= set(_in_client(client))
    if left:
        raise Violation(f"an idle client still has {'; '.join(sorted(left))}")


def _process() -> Process:
    process = PROCESS.get()
    assert process is not None
    return process


def _in_client(client: RebaserClient) -> Iterator[str]:
    publisher = client._task_publisher
    yield from _subscriptions(client._connection)
    yield from _in_connection(client._connection)
    yield from (f"a follower of {key}" for key in client._coverage._followers)
    yield from (f"an unanswered request to {key}" for key in client._resender._queues)
    yield from (f"a wake-up of {key}" for key in {*publisher._next, *publisher._running})
    yield from (f"a reply of {key} to come" for _, key, _ in publisher._deferred)


def _subscriptions(connection: Connection) -> Iterator[str]:
    answers = f"{connection._replies.inbox}*"
    yield from (f"a subscription to {one.subject}" for one in connection._subscriptions if one.subject != answers)


def _in_connection(connection: Connection) -> Iterator[str]:
    for hooks in (connection._on_tick, connection._on_reconnect, connection._on_close):
        for hook in hooks:
            if not isinstance(getattr(hook, "__self__", None), Resender):
                yield f"the hook {getattr(hook, '__qualname__', hook)}"
    replies = connection._replies
    if replies._waiting:
        yield f"waiters for replies: {list(replies._waiting)}"
    due = sum(len(deadlines.due) for deadlines in replies._deadlines.values())
    if due:
        yield f"deadlines of {due} replies"


def _in_server(server: Server) -> Iterator[str]:
    context, owners = server._context, server._owners
    yield from (f"a task of {key} that nobody took" for key in server._successor_tasks)
    holders = sum(owner.lifecycle.holds_slot for owner in owners.values())
    if server._slots_taken != holders:
        yield f"{server._slots_taken} slots taken, by {holders} owners"
    yield from (f"a task of {key} that waits for a slot" for key in server._held)
    slots = server._slot_total()
    if server._slots_taken + server._tasks_requested < slots:
        yield f"{server._slots_taken} slots taken and {server._tasks_requested} asked for, of {slots}"
    if server._pull is not None and server._pull._state.free + server._pull.outstanding != server._tasks_requested:
        yield f"{server._tasks_requested} tasks asked for, and pulls for {server._pull.outstanding}"
    if context.deleter._queue:
        yield f"requests to be deleted: {context.deleter._queue}"
    if context.suspect_request_lock.locked() or context.suspect_dvu_lock.locked():
        yield "a suspect being tried"


class _Ended:
    """An owner, and the `processor` that it used, which it releases at its end."""

    def __init__(self, process: Process, owner: Owner) -> None:
        self.process = process
        self.owner = owner
        self.processor: Processor | None = None

    def drop_resources(self) -> None:
        self.processor = self.owner._processor
        Owner.drop_resources(self.owner)


def _in_owner(owner: Owner, processor: Processor | None, unburied: bool) -> Iterator[str]:
    state, commits = owner.lifecycle, owner.commits
    if state.busy or state.jobs or owner._work or owner.key in owner._context.running_updates:
        yield f"{state.jobs} jobs and {len(owner._work)} scopes of work"
    if commits is not None and (commits.state.pinned or commits._lock.locked()):
        yield "a view or a turn"
    if commits is not None and commits._viewing is not None and commits._viewing.locked():
        yield "a view, or one that waits for it"
    burying = processor is not None and not unburied and state.stopping in (None, Reason.YIELD)
    if burying and processor is not None and processor._pending_dead:
        yield f"requests to bury: {list(processor._pending_dead)}"
    if state.stopping is None and owner._rest:
        yield f"{len(owner._rest)} undecided requests"
    if commits is not None and commits.state.applied is not None:
        passed = commits.state.applied.sequence
        if over := [one for one in commits.state.attempts.values() if DVU_ATTEMPT < one.sequence <= passed]:
            yield f"attempts that are over: {over}"
