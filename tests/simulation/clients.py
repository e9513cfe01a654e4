"""The simulated clients: they send requests through the real client library, and remember the answers."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import anyio

from rebaser_client import RebaserClient
from rebaser_client.client import Wait
from rebaser_client.errors import RequestRejected
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.branches.branch import Action, Apply, Create, Rebase
from rebaser_core.commit import Marking, Reverts
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Recompute, Update
from tests.simulation.left import nothing_left

TIMEOUT = 20.0  # virtual seconds


class Told(Enum):
    NOTHING = "nothing"
    STORED = "stored"
    ANSWERED = "answered"
    REJECTED = "rejected"


@dataclass
class Operation:
    """One request. `garbage` is an unreadable body, which is published without the client library as a message of
    `version`.

    With `twice`, the request is stored, and then sent again for an answer.
    """

    id: str
    key: ChangeSetKey
    updates: tuple[Update, ...]
    pause: float
    wait: Wait | None
    from_change_set: str | None = None
    garbage: bytes = b""
    version: int = 2
    twice: bool = False
    recompute: Recompute | None = None
    author: str = ""
    # Whether it expects the newest commit that its client knows; `expect_at` holds that commit once it was sent.
    expects: bool = False
    # Whether it reverts commits that its client knows, if any; `revert` holds them once it was sent.
    takes_back: bool = False
    expect_at: int | None = None
    revert: Reverts | None = None
    create: Create | None = None
    apply: Apply | None = None
    rebase: Rebase | None = None
    marking: Marking | None = None
    of_old: bool = False  # whether it creates from a commit that its client knows, if any
    pick: int = 0
    told: Told = Told.NOTHING
    begun: bool = False

    @property
    def action(self) -> Action | None:
        return self.revert or self.create or self.apply or self.rebase or self.marking


@dataclass
class Programme:
    """The work of one client: several lanes of operations run concurrently, and the operations of a lane one after the
    other.

    If it is `stubborn`, it repeats each operation until there is an outcome, also after a crash. With `once`, it never
    repeats an operation.
    """

    name: str
    lanes: list[list[Operation]]
    stubborn: bool
    once: bool
    rng: random.Random
    check: Callable[[str, EnqueueUpdatesResponse, Wait], None]
    refused: Callable[[str, RebaserError], None]
    tell: Callable[[str, str], None]
    done: int = 0
    known: dict[ChangeSetKey, list[int]] = field(default_factory=dict)  # the commits that answers named

    @property
    def operations(self) -> list[Operation]:
        return [operation for lane in self.lanes for operation in lane]

    async def run(self, url: str) -> None:
        async with RebaserClient.connect(url) as client:
            async with anyio.create_task_group() as group:
                for lane in self.lanes:
                    group.start_soon(self._run_lane, client, lane)
            await nothing_left(client)

    async def _run_lane(self, client: RebaserClient, lane: list[Operation]) -> None:
        for operation in lane:
            if operation.told is not Told.NOTHING or (
                operation.begun and (self.once or (not self.stubborn and self.rng.random() < 0.5))
            ):
                continue
            await anyio.sleep(operation.pause)
            if not operation.begun:
                self._look(operation)
            operation.begun = True
            while operation.told is Told.NOTHING:
                try:
                    await self._send(client, operation)
                except RebaserError as error:
                    self.refused(operation.id, error)
                    self.tell(self.name, f"{operation.id}: {type(error).__name__} {error.code}")
                    if self.once or (not self.stubborn and self.rng.random() < 0.3):
                        break
                    await anyio.sleep(0.3)
            self.tell(self.name, f"{operation.id} was told {operation.told.value}")

    def _look(self, operation: Operation) -> None:
        """Choose the details of the request. They stay the same if the request is sent again."""
        if operation.create is not None:
            parent = ChangeSetKey(operation.key.workspace, operation.create.parent or "")
            if operation.of_old and (older := self.known.get(parent)):
                operation.create = replace(operation.create, at=older[operation.pick % len(older)])
            return
        if operation.apply is not None:
            branch = ChangeSetKey(operation.key.workspace, operation.apply.source)
            if operation.of_old and (older := self.known.get(branch)):
                operation.apply = replace(operation.apply, at=older[operation.pick % len(older)])
            if operation.pick // 7 % 4 == 0 and (seen := self.known.get(operation.key)):
                operation.expect_at = seen[operation.pick % len(seen)]
            return
        known = self.known.get(operation.key)
        if known and operation.expects:
            operation.expect_at = max(known)
        if known and operation.takes_back:
            first = operation.pick % len(known)
            other = (first - operation.pick % 3) % len(known)
            operation.revert = Reverts(min(known[first], known[other]), max(known[first], known[other]))
            operation.updates, operation.recompute, operation.from_change_set = (), None, None
            operation.wait, operation.twice = operation.wait or "applied", False

    async def _send(self, client: RebaserClient, operation: Operation) -> None:
        key = operation.key
        self.tell(self.name, f"{operation.id} to {key}, wait {operation.wait}")
        if operation.garbage:
            await self._send_garbage(client, operation)
            return
        if operation.wait is None or operation.twice:
            await client.enqueue_updates(
                key.workspace,
                key.change_set,
                operation.updates,
                request_id=operation.id,
                from_change_set=operation.from_change_set,
                recompute=operation.recompute,
                author=operation.author,
                expect_at=operation.expect_at,
                timeout=TIMEOUT,
            )
            operation.told = Told.STORED
        if operation.wait is not None:
            try:
                response = await client.enqueue_updates_with_reply(
                    key.workspace,
                    key.change_set,
                    operation.updates,
                    wait=operation.wait,
                    request_id=operation.id,
                    from_change_set=operation.from_change_set,
                    recompute=operation.recompute,
                    author=operation.author,
                    expect_at=operation.expect_at,
                    action=operation.action,
                    timeout=TIMEOUT,
                )
            except RequestRejected as rejected:
                operation.told = Told.REJECTED
                self.check(operation.id, rejected.response, "applied")
            else:
                operation.told = Told.ANSWERED
                if isinstance(response.status, Success):
                    self.known.setdefault(key, []).append(response.status.commit)
                self.check(operation.id, response, operation.wait)

    async def _send_garbage(self, client: RebaserClient, operation: Operation) -> None:
        headers = {
            "X-CONTENT-TYPE": "application/cbor",
            "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
            "X-MESSAGE-VERSION": str(operation.version),
            "X-Reply-Inbox": "_INBOX.nobody",
        }
        subjects = Subjects()
        await client._js.publish(subjects.requests(operation.key), operation.garbage, headers)
        await publish_task(client._js, subjects, operation.key)
        operation.told = Told.STORED
