"""A client process, whose workers edit and read the same change sets concurrently, and record what they observe.

python -m tests.chaos.client '{"url": …, "name": …, "workspace": …, "change_sets": […], "seed": …, "history": PATH, …}'

After SIGTERM, each worker makes two last requests, one of which it only stores. Both have to succeed, and the process
ends.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from rebaser_client import (
    NotConnectedError,
    RebaserClient,
    Remove,
    RequestRejected,
    Set,
    Success,
    Unset,
    Update,
)
from rebaser_client.client import Wait
from rebaser_core.commit import Outcome
from rebaser_core.errors import RebaserError
from rebaser_core.updates import Derive
from tests.chaos.history import LAX, Book
from tests.support.editors import EDITORS, IDS, Edits

SILENCE = 45  # seconds beyond the timeout, while awake, after which a call without any result is a violation
LAST_TRIES = 40  # attempts of the last request, after all faults have ended


@dataclass(frozen=True)
class Plan:
    url: str
    name: str
    workspace: str
    change_sets: list[str]
    seed: int
    history: str
    workers: int = 4
    timeout: float = 8.0  # seconds until a request times out
    pause: float = 0.06  # maximum seconds between two requests of a worker
    derived: bool = True  # whether there are derived values, which need Spark
    large: float = 0.003  # share of requests that are too large for a message
    wrong: float = 0.01  # share of requests that have to be refused


@dataclass(frozen=True)
class Request:
    id: str
    change_set: str
    updates: list[Update]
    origin: str | None  # the change set that it claims to come from


class Silent(Exception):  # noqa: N818 - what it is
    """A call ended neither with a result nor with a timeout."""


class Worker:
    """Sends one request at a time. In each change set, only this worker writes its marker, which counts its
    requests."""

    def __init__(self, client: RebaserClient, book: Book, plan: Plan, number: int) -> None:
        self.name = f"{plan.name}-{number}"
        self._client = client
        self._book = book
        self._plan = plan
        self._random = random.Random(f"{plan.seed}-{self.name}")
        self._edits = Edits(self._random.randrange(2**32), number % EDITORS)
        self._count = 0

    async def run(self, stop: anyio.Event) -> None:
        while not stop.is_set():
            await self._act()
            await anyio.sleep(self._random.uniform(0, self._plan.pause))
        for change_set in self._plan.change_sets[:1]:
            for how in ("stored", "applied"):
                await self._last(change_set, how)

    async def _act(self) -> None:
        rng = self._random
        change_set = rng.choice(self._plan.change_sets)
        derived = 8 if self._plan.derived else 0
        match rng.choices(("applied", "derived", "stored", "read", "again", "abandon"), (55, derived, 17, 10, 5, 5))[0]:
            case "read":
                await self._read(change_set, 0)
            case "again":
                request = self._request(change_set)
                for _ in range(2):
                    await self._send(request, "applied")
            case "abandon":
                request = self._request(change_set)
                with anyio.move_on_after(rng.uniform(0, 0.03)):
                    await self._send(request, rng.choice(("applied", "stored")))
            case how:
                request = self._request(change_set)
                for _ in range(rng.randint(1, 6)):
                    if await self._send(request, how):
                        break
                    await anyio.sleep(rng.uniform(0, 0.5))

    def _request(self, change_set: str, *more: Update) -> Request:
        """Draw a request, and record it with the updates `more`."""
        self._count += 1
        rng = self._random
        updates: list[Update] = [Set(f"seen/{self.name}", self._count)]
        derives = (88, 3, 6, 3, 0) if self._plan.derived else (0, 0, 0, 0, 1)
        match rng.choices(("batch", "trouble", "mend", "total", "sets"), derives)[0]:
            case "batch":
                updates += self._edits.batch()
            case "trouble":
                updates += self._edits.trouble()
            case "mend":
                updates += self._edits.mend()
            case "total":
                updates.append(Derive("total", "sum", {"of": [f"seen/{self.name}", *rng.sample(IDS, 2)]}))
            case "sets":
                updates += [rng.choice((Set(id_, self._count), Unset(id_), Remove(id_))) for id_ in rng.sample(IDS, 2)]
        updates += more
        due = Outcome.SUCCESS
        if rng.random() < self._plan.wrong:
            due = rng.choice((Outcome.CONFLICTS, Outcome.DEAD))
            updates.append(Remove("never") if due is Outcome.CONFLICTS else Unset("x" * LAX.max_id_length))
        # A request that will be dead has its updates in a blob, so that the message with its id is readable.
        if due is Outcome.DEAD or rng.random() < self._plan.large:
            updates += [Set(f"large/{part}", rng.choice("abc") * 200_000) for part in range(4)]
        id_ = f"{self.name}-{self._count}"
        self._book.note("sent", id=id_, cs=change_set, due=due, updates=[update.to_wire() for update in updates])
        return Request(id_, change_set, updates, "elsewhere" if due is Outcome.CONFLICTS else None)

    async def _send(self, request: Request, how: str) -> bool:
        """Send a request, and return whether it was answered."""
        try:
            await self._heard(lambda: self._try(request, how))
        except RequestRejected as error:
            status = error.response.status
            self._book.note("rejected", id=request.id, code=error.code, commit=status.commit)
        except RebaserError as error:
            self._book.note("failed", id=request.id, error=error.code)
            return False
        except Silent:
            self._book.note("trouble", what=f"request {request.id} ({how}) had neither an answer nor an error")
            return False
        return True

    async def _try(self, request: Request, how: str) -> None:
        enqueue: Any = self._client.enqueue_updates
        if how != "stored":
            wait: Wait = "derived" if how == "derived" else "applied"
            enqueue = partial(self._client.enqueue_updates_with_reply, wait=wait)
        response = await enqueue(
            self._plan.workspace,
            request.change_set,
            request.updates,
            request_id=request.id,
            from_change_set=request.origin,
            timeout=self._plan.timeout,
        )
        if how == "stored":
            self._book.note("stored", id=request.id)
            return
        status = response.status
        if not isinstance(status, Success) or response.id != request.id:
            self._book.note("trouble", what=f"request {request.id} was answered by {response}")
            return
        self._book.note("applied", id=request.id, commit=status.commit, performed=status.performed)
        if how == "derived":
            await self._read(request.change_set, status.commit)

    async def _read(self, change_set: str, owed: int) -> None:
        sent = time.monotonic()
        try:
            with anyio.fail_after(self._plan.timeout):
                state = await self._client.state(self._plan.workspace, change_set)
        except (RebaserError, TimeoutError) as error:
            self._book.note("unread", error=type(error).__name__)
            return
        seen = {id_: cell.value for id_, cell in state.cells.items() if id_.startswith("seen/")}
        self._book.note("read", cs=change_set, sent=sent, last=state.last, covers=state.covers, seen=seen, owed=owed)

    async def _last(self, change_set: str, how: str) -> None:
        """Send a last request, when all faults have ended. It has to succeed, on the connection that went through all
        faults. It asks for an update, which random edits on a slow machine may not have done."""
        derived = [Derive("last", "sum", {"of": [f"seen/{self.name}"]})] if self._plan.derived else []
        request = self._request(change_set, *derived)
        for _ in range(LAST_TRIES):
            if await self._send(request, how):
                return
            await anyio.sleep(0.5)
        self._book.note("trouble", what=f"{self.name} could not reach anybody when all was well again")

    async def _heard(self, call: Callable[[], Awaitable[None]]) -> None:
        """Raise `Silent` if `call` takes much longer than its own timeout.

        The time is counted in short sleeps: if the process is paused meanwhile, only one of them is prolonged.
        """
        over = False
        async with anyio.create_task_group() as group:

            async def complain() -> None:
                nonlocal over
                for _ in range(int(self._plan.timeout) + SILENCE):
                    await anyio.sleep(1)
                over = True
                group.cancel_scope.cancel()

            group.start_soon(complain)
            failure: RebaserError | None = None
            try:
                await call()
            except RebaserError as error:
                failure = error
            group.cancel_scope.cancel()
        if over:
            raise Silent
        if failure is not None:
            raise failure


async def main(plan: Plan) -> None:
    book = Book(Path(plan.history))
    stop = anyio.Event()
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                book.note("ready")
                async for _ in signals:
                    stop.set()
                    return

        group.start_soon(listen)
        while True:
            try:
                async with RebaserClient.connect(plan.url, limits=LAX) as client, anyio.create_task_group() as workers:
                    for number in range(plan.workers):
                        workers.start_soon(Worker(client, book, plan, number).run, stop)
                break
            except NotConnectedError:
                await anyio.sleep(0.2)
        group.cancel_scope.cancel()
    book.note("ended")


if __name__ == "__main__":
    anyio.run(main, Plan(**json.loads(sys.argv[1])))
