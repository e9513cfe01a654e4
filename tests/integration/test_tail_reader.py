"""The copies of a parent's commits that a server keeps always equal what a new reader reads."""

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from rebaser.change_set.readers import tail_reader
from rebaser.change_set.readers.tail_reader import TailReader
from rebaser.runtime import tail_cache
from rebaser.runtime.context import Context
from rebaser.runtime.tail_cache import Tail
from rebaser.settings import Settings
from rebaser_client import RebaserClient, RequestRejected, Set
from rebaser_client.jetstream import JetStream, StoredMessage
from rebaser_core.commit import TailRow
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import copy_row, decode_tail
from rebaser_core.state.change_set import BrokenChain
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.contexts import context_of
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

WAYS = {"rows": Thresholds(), "encoded": Thresholds(inline_tail_max_bytes=0)}


class System:
    """A server with a context that keeps copies. `copied` is the number of messages copied since the last `read`."""

    def __init__(self, js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
        self._js = js
        self._subjects = subjects
        self.client = client
        self.copied = 0
        self.context = self._context()

    def _context(self) -> Context:
        return context_of(self._js, self._subjects, Settings(server_id="reader"))

    async def edit(self, name: str, number: int = 0) -> int:
        return commit_of(await self.client.enqueue_updates_with_reply("ws", name, [Set(f"id{number % 7}", number)]))

    async def read(self, name: str, at: int | None = None, context: Context | None = None) -> Tail | None:
        context = context or self.context
        self.copied = 0
        message = await context.reader.newest_message(ChangeSetKey("ws", name), at)
        assert message is not None
        commit = context.reader.decode(message.sequence, message.headers, message.data)
        assert commit is not None
        return await TailReader(context, ChangeSetKey("ws", name)).read(message, commit, may_be_purged=at is not None)

    async def check(self, name: str, copied: int, at: int | None = None) -> None:
        """Read with the kept copies, check how many messages were copied, and compare with a new reader."""
        tail = await self.read(name, at)
        assert self.copied == copied
        fresh = await self.read(name, at, self._context())
        assert tail is not None
        assert fresh is not None
        assert (tail.data, tail.needed, tail.size) == (fresh.data, fresh.needed, fresh.size)
        assert (tail.after, tail.first, tail.newest.sequence) == (fresh.after, fresh.first, fresh.newest.sequence)
        assert tail.rows in (None, decode_tail(tail.data))

    async def purge(self, name: str, below: int) -> None:
        subject = self._subjects.commits(ChangeSetKey("ws", name))
        await self._js.purge(self._subjects.commits_stream, subject, sequence=below)


@pytest.fixture
async def system(
    nats_url: str, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    engine = Engine()
    engine.go.set()

    def counted(sequence: int, headers: dict[str, str], data: bytes) -> TailRow:
        running.copied += 1
        return copy_row(sequence, headers, data)

    monkeypatch.setattr(tail_reader, "copy_row", counted)
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client, serving(js, subjects, engine):
        running = System(js, subjects, client)
        yield running


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_kept_copy_serves_its_position_and_grows_with_the_log(system: System, limits: Thresholds) -> None:
    with forced(limits):
        made = [await system.edit("main", number) for number in range(5)]
        await system.check("main", copied=5)
        await system.check("main", copied=0)
        await system.edit("main", 5)
        await system.check("main", copied=1)
        for number in range(6, 9):
            await system.edit("main", number)
        await system.check("main", copied=3)
        await system.check("main", copied=0, at=made[4])
        await system.check("main", copied=3, at=made[2])
        await system.check("main", copied=1, at=made[3])
        await system.client.create_branch("ws", "fix")
        await system.check("fix", copied=1)
        await system.edit("fix", 10)
        await system.check("fix", copied=1)
        await system.edit("fix", 11)
        await system.edit("fix", 12)
        await system.check("fix", copied=2)


async def test_a_kept_copy_is_of_no_use_once_the_beginning_is_purged(system: System) -> None:
    made = [await system.edit("main", number) for number in range(4)]
    await system.client.create_branch("ws", "before", at=made[2])
    await system.read("main", made[2])
    await system.purge("main", made[1])
    with pytest.raises(RequestRejected) as caught:
        await system.client.create_branch("ws", "after", at=made[2])
    assert caught.value.code == "purged"
    for _ in range(2):
        with pytest.raises(BrokenChain):
            await system.read("main", made[2])
        with pytest.raises(BrokenChain):  # the kept copy must not be added to either of them
            await system.read("main", made[3])


@pytest.mark.parametrize("at", [2, 3, 5])
async def test_a_copy_of_another_log_with_the_same_sequences_is_not_used(system: System, at: int) -> None:
    made = [await system.edit("main", number) for number in range(6)]
    tail = await system.read("main", made[2])
    assert tail is not None
    old = tail.newest
    other = StoredMessage(old.subject, old.sequence, old.headers, old.data + b" ", old.time)
    system.context.tails.add(ChangeSetKey("ws", "main"), replace(tail, newest=other, data=b"", rows=()))
    await system.check("main", copied=at + 1, at=made[at])


async def test_several_that_need_one_copy_read_it_once_unless_that_fails(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.runtime.tail_cache.PATIENCE", 60.0)
    for number in range(5):
        await system.edit("main", number)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(system.read, "main")
    assert system.copied == 5

    system.context = system._context()
    outcomes: list[object] = []
    rows, failures = TailReader._rows, [TransientError("as if the store were away", code="away")]

    async def failing(reader: TailReader, messages: object) -> object:
        await anyio.sleep(0.05)
        if failures:
            raise failures.pop()
        return await rows(reader, messages)  # type: ignore[arg-type] # unchanged

    async def read() -> None:
        try:
            outcomes.append(await system.read("main"))
        except TransientError as error:
            outcomes.append(error.code)

    monkeypatch.setattr(TailReader, "_rows", failing)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(read)
    assert outcomes.count("away") == 1
    assert all(type(outcome) in (str, Tail) for outcome in outcomes)


async def test_nobody_waits_for_long_for_somebody_else(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    await system.edit("main")
    monkeypatch.setattr(tail_cache, "PATIENCE", 0.01)
    message = await system.context.reader.newest_message(ChangeSetKey("ws", "main"))
    assert message is not None
    async with system.context.tails.reading(ChangeSetKey("ws", "main"), message) as kept:
        assert kept is None  # this call never ends
        await system.check("main", copied=1)


async def test_what_is_too_large_is_not_copied_and_what_is_kept_has_a_bound(system: System) -> None:
    await system.edit("main")
    with forced(Thresholds(tail_cache_max_bytes=0)):
        await system.check("main", copied=1)
        await system.check("main", copied=1)
        assert system.context.tails.memory == 0
    await system.check("main", copied=1)
    assert system.context.tails.memory > 0
    with forced(Thresholds(tail_max_bytes=300)):
        for number in range(4):
            await system.edit("main", number)
        assert await system.read("main") is None
    with forced(Thresholds(tail_cache_max_bytes=100_000)):
        for number in range(9):
            await system.edit("main", number)
            await system.read("main")
            assert 0 < system.context.tails.memory <= 100_000
