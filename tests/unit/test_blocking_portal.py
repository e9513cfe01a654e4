"""The event loop thread of blocking clients: clients share it, its calls can be interrupted, and it closes
iterations."""

import gc
import inspect
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from rebaser_client import ClientClosedError, DeadLetterBox, RebaserClient
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.blocking import BlockingIterator, BlockingRebaserClient
from rebaser_client.blocking.client import BlockingDeadLetterBox, BlockingFleetWatch
from rebaser_client.blocking.portal import READ_AHEAD, Portal

BOUND = 30  # seconds; a bound against hanging


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


def methods(of: type) -> dict[str, Any]:
    found = {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}
    return {name: method for name, method in found.items() if callable(method)}


@pytest.mark.parametrize(
    ("of", "blocking"),
    [
        (RebaserClient, BlockingRebaserClient),
        (DeadLetterBox, BlockingDeadLetterBox),
        (FleetWatch, BlockingFleetWatch),
    ],
)
def test_the_methods_are_those_of_the_asynchronous_class(of: type, blocking: type) -> None:
    theirs, ours = methods(of), methods(blocking)
    assert {name.removeprefix("a") if name == "aclose" else name for name in theirs} == set(ours)
    assert hasattr(of, "__aenter__") == hasattr(blocking, "__enter__")
    assert hasattr(of, "__aexit__") == hasattr(blocking, "__exit__")
    for name, method in ours.items():
        if name in ("connect", "open", "close", "fleet"):
            continue
        assert not inspect.iscoroutinefunction(method)
        assert inspect.signature(method) == inspect.signature(theirs[name])
        assert method.__doc__ == theirs[name].__doc__


def test_all_share_one_thread_that_ends_with_the_last() -> None:
    first, second = Portal(), Portal()

    async def thread() -> int:
        return threading.get_ident()

    ident = first.call(thread)
    assert second.call(thread) == ident != threading.get_ident()
    first.close()
    first.close()
    with pytest.raises(ClientClosedError):
        first.call(thread)
    assert second.call(thread) == ident
    second.close()
    assert ident not in {running.ident for running in threading.enumerate()}


def test_an_interrupted_call_is_cancelled(portal: Portal) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    def interrupt(*_: object) -> None:
        if begun.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.call(work)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended.wait(BOUND)


class Numbers:
    """Yields numbers below `end`. Records how many were taken, and whether it was closed in the task that opened it."""

    def __init__(self, end: int, error: Exception | None = None) -> None:
        self.end, self.error, self.taken, self.closed = end, error, 0, threading.Event()

    async def __call__(self) -> AsyncIterator[int]:
        task = anyio.get_current_task().id
        try:
            with anyio.CancelScope():
                for number in range(self.end):
                    self.taken += 1
                    yield number
            if self.error is not None:
                raise self.error
        finally:
            if anyio.get_current_task().id == task:
                self.closed.set()


def test_an_iteration_yields_all_in_order_and_then_its_error(portal: Portal) -> None:
    assert list(BlockingIterator(portal, Numbers(3 * READ_AHEAD))) == list(range(3 * READ_AHEAD))
    failing = BlockingIterator(portal, Numbers(2, ValueError("no more")))
    assert [next(failing), next(failing)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="no more"):
            next(failing)


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_an_iteration_that_is_given_up_ends_on_the_loop(portal: Portal, how: str) -> None:
    numbers = Numbers(10**9)
    iterator = BlockingIterator(portal, numbers)
    assert next(iterator) == 0
    if how == "drop":
        del iterator
        gc.collect()
    elif how == "with":
        with iterator:
            pass
    else:
        iterator.close()
        assert list(iterator) == []
    assert numbers.closed.wait(BOUND)
    assert numbers.taken <= 3 * READ_AHEAD


def test_closing_the_portal_ends_an_iteration_that_nobody_reads() -> None:
    portal, numbers = Portal(), Numbers(10**9)
    iterator = BlockingIterator(portal, numbers)
    assert next(iterator) == 0
    while numbers.taken < READ_AHEAD:  # from here on, the iterator waits for its reader
        time.sleep(0.001)
    portal.close()
    assert numbers.closed.wait(BOUND)
    with pytest.raises(ClientClosedError):
        list(iterator)


def test_a_child_has_to_open_its_own(portal: Portal) -> None:
    async def answer() -> int:
        return 42

    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ClientClosedError, match="fork"):
                portal.call(answer)
            assert portal.closed
            portal.close()
            own = Portal()
            right = own.call(answer) == 42
            own.close()
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert portal.call(answer) == 42
