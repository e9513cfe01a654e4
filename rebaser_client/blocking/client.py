"""`BlockingRebaserClient`: the methods of `RebaserClient`, each of which blocks the calling thread until it is done.

Each method is derived from the asynchronous one, so names, parameters, types, errors and docstrings are the same.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from rebaser_client.admin.dead_letters import DeadLetterBox
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.blocking.portal import BlockingIterator, Portal
from rebaser_client.client import DEFAULT_URL, RebaserClient
from rebaser_client.log.branches import BranchInfo
from rebaser_client.options import ClientOptions
from rebaser_client.requests.many import Request, RequestOutcome, WaitMany

A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class _Blocking(Generic[A_co]):
    """A wrapper that calls the methods of `wrapped` on the event loop of `portal`."""

    def __init__(self, portal: Portal, wrapped: A_co) -> None:
        self._portal, self._wrapped = portal, wrapped


def _calls(method: Callable[Concatenate[A_co, P], Awaitable[T]]) -> Callable[Concatenate[_Blocking[A_co], P], T]:
    @wraps(method)
    def call(self: _Blocking[A_co], /, *args: P.args, **options: P.kwargs) -> T:
        return self._portal.call(lambda: method(self._wrapped, *args, **options))

    return call


def _iterates(
    method: Callable[Concatenate[A_co, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Blocking[A_co], P], BlockingIterator[T]]:
    @wraps(method)
    def iterate(self: _Blocking[A_co], /, *args: P.args, **options: P.kwargs) -> BlockingIterator[T]:
        wrapped = self._wrapped
        return BlockingIterator(self._portal, lambda: method(wrapped, *args, **options))

    return iterate


class BlockingDeadLetterBox(_Blocking[DeadLetterBox]):
    """The methods of `DeadLetterBox`, for programs without an event loop."""

    find = _iterates(DeadLetterBox.find)
    get = _calls(DeadLetterBox.get)
    payload = _calls(DeadLetterBox.payload)
    redrive = _calls(DeadLetterBox.redrive)
    drop = _calls(DeadLetterBox.drop)


class _Escaped(Exception):  # noqa: N818 - callers never see this exception
    """A wrapper that carries an exception such as SystemExit from the event loop to the calling thread.

    Without the wrapper, the exception would end the event loop, which all clients share.
    """

    def __init__(self, original: BaseException) -> None:
        super().__init__()
        self.original = original


@contextmanager
def _carried() -> Generator[None, None, None]:
    try:
        yield
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - no exception may end the event loop
        raise _Escaped(error) from None


def _carrying(requests: Iterable[Request]) -> Iterator[Request]:
    with _carried():
        yield from requests


class BlockingFleetWatch(_Blocking[FleetWatch]):
    """The methods of `FleetWatch`, for programs without an event loop. Use this class as a context manager."""

    look = _calls(FleetWatch.look)
    look_early = _calls(FleetWatch.look_early)

    def change_sets(self) -> list[BranchInfo]:
        async def read() -> list[BranchInfo]:
            return self._wrapped.change_sets()

        return self._portal.call(read)

    change_sets.__doc__ = FleetWatch.change_sets.__doc__

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._portal.call(lambda: self._wrapped.__aexit__(kind, error, traceback))


class BlockingRebaserClient(_Blocking[RebaserClient]):
    """A connection to one installation, for programs without an event loop: scripts, notebooks and threads.

        with BlockingRebaserClient.connect("nats://127.0.0.1:4222") as client:
            client.enqueue_updates("shop", "main", [Set("price", 9.5)])

    All threads of a process can share a client, and all clients of a process share one thread with an event loop. The
    methods are those of `RebaserClient`; where that class returns an asynchronous iterator, this class returns a
    `BlockingIterator`. Ctrl-C cancels a waiting call. `enqueue_many` iterates over its requests, and calls
    `on_outcome`, in the thread of the event loop, so neither may block or call a client. After a fork, the child
    process has to connect again.
    """

    def __init__(self, portal: Portal, wrapped: RebaserClient) -> None:
        super().__init__(portal, wrapped)
        self.dead_letters = BlockingDeadLetterBox(portal, wrapped.dead_letters)

    @classmethod
    @contextmanager
    def connect(cls, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> Generator[Self, None, None]:
        """Connect like `RebaserClient.connect`. The connection is closed when the `with` block ends."""
        client = cls.open(url, **options)
        try:
            yield client
        except BaseException:
            with suppress(Exception):  # the body's exception takes precedence over an error in `close`
                client.close()
            raise
        client.close()

    @classmethod
    def open(cls, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> Self:
        """Connect like `connect`, but without a context manager. The caller closes the client with `close`."""
        portal = Portal()
        try:
            return cls(portal, portal.call(lambda: RebaserClient.open(url, **options)))
        except BaseException:
            portal.close()
            raise

    def enqueue_many(
        self,
        requests: Iterable[Request],
        *,
        wait: WaitMany = "applied",
        timeout: float = 60.0,
        on_outcome: Callable[[RequestOutcome], None] | None = None,
    ) -> list[RequestOutcome]:
        def told(outcome: RequestOutcome) -> None:
            if on_outcome is not None:
                with _carried():
                    on_outcome(outcome)

        given = _carrying(requests)
        try:
            return self._portal.call(
                lambda: self._wrapped.enqueue_many(given, wait=wait, timeout=timeout, on_outcome=told)
            )
        except _Escaped as escaped:
            raise escaped.original from None

    enqueue_many.__doc__ = RebaserClient.enqueue_many.__doc__

    def fleet(self, workspace: str | None = None) -> BlockingFleetWatch:
        """Return an object that observes the servers, and the change sets that have work to do.

        If `workspace` is given, only its change sets are observed.

            with client.fleet() as fleet:
                view = fleet.look()  # repeat this call; rates are measured since the previous call
        """
        return BlockingFleetWatch(self._portal, self._wrapped.fleet(workspace))

    def close(self) -> None:
        """Close the client. Calls in progress and all later calls raise `ClientClosedError`."""
        if not self._portal.closed:
            try:
                if not sys.is_finalizing():
                    self._portal.call(self._wrapped.aclose)
            finally:
                self._portal.close()

    enqueue_updates = _calls(RebaserClient.enqueue_updates)
    enqueue_updates_with_reply = _calls(RebaserClient.enqueue_updates_with_reply)
    recompute = _calls(RebaserClient.recompute)
    revert = _calls(RebaserClient.revert)
    undoable = _calls(RebaserClient.undoable)
    redoable = _calls(RebaserClient.redoable)
    undo = _calls(RebaserClient.undo)
    redo = _calls(RebaserClient.redo)
    close_change_set = _calls(RebaserClient.close_change_set)
    reopen_change_set = _calls(RebaserClient.reopen_change_set)
    delete_change_set = _calls(RebaserClient.delete_change_set)
    apply = _calls(RebaserClient.apply)
    new_errors = _calls(RebaserClient.new_errors)
    protect = _calls(RebaserClient.protect)
    unprotect = _calls(RebaserClient.unprotect)
    rebase = _calls(RebaserClient.rebase)
    conflicts = _calls(RebaserClient.conflicts)
    resolve = _calls(RebaserClient.resolve)
    create_branch = _calls(RebaserClient.create_branch)
    branch = _calls(RebaserClient.branch)
    branches = _calls(RebaserClient.branches)
    changes = _calls(RebaserClient.changes)
    branch_edits = _calls(RebaserClient.branch_edits)
    exists = _calls(RebaserClient.exists)
    change_sets = _calls(RebaserClient.change_sets)
    value = _calls(RebaserClient.value)
    get = _calls(RebaserClient.get)
    values = _calls(RebaserClient.values)
    items = _calls(RebaserClient.items)
    state = _calls(RebaserClient.state)
    log = _iterates(RebaserClient.log)
    show = _calls(RebaserClient.show)
    blame = _calls(RebaserClient.blame)
    diff = _calls(RebaserClient.diff)
    history_status = _calls(RebaserClient.history_status)
    definitions = _calls(RebaserClient.definitions)
    value_history = _calls(RebaserClient.value_history)
    queue = _calls(RebaserClient.queue)
    last_decided = _calls(RebaserClient.last_decided)
    watch = _iterates(RebaserClient.watch)
    watch_progress = _iterates(RebaserClient.watch_progress)
    wait_covered = _calls(RebaserClient.wait_covered)
    entries = _iterates(RebaserClient.entries)
    status = _calls(RebaserClient.status)
    streams = _calls(RebaserClient.streams)
    explain = _calls(RebaserClient.explain)
    explain_value = _calls(RebaserClient.explain_value)
    task_acks = _calls(RebaserClient.task_acks)
