"""Open branches that nobody uses cost nothing while their target changes; after a request, one commit brings each up to
date."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.branches.branch import Create
from rebaser_core.commit import Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology"), pytest.mark.timeout(900)]

HEAD = ChangeSetKey("ws", "main")
EDITS = 20  # edits of the target while the branches are unused


class Counting(Engine):
    """Counts what is computed, by change set."""

    def __init__(self) -> None:
        super().__init__()
        self.go.set()
        self.computed: Counter[str] = Counter()

    async def evaluate(self, packets: list[bytes], *, label: str = "", **more: object) -> list[list[bytes]]:  # type: ignore[override]
        self.computed[label] += 1
        return await super().evaluate(packets, **more)


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
async def test_branches_that_sleep_cost_nothing_and_wake_level_in_one_commit_each(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    count: int,
    record_property: Callable[[str, object], None],
) -> None:
    engine, names = Counting(), [f"b{number}" for number in range(count)]
    async with serving(js, subjects, engine, quiescent_period=0.2, concurrency=50):
        total = Derive("sum", "sum", {"values": ("a", "b")})
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1), Set("b", 1), total], wait="derived")

        async def create(some: list[str]) -> None:
            for name in some:
                await client.enqueue_updates_with_reply("ws", name, (), action=Create("main"), timeout=300)

        async with anyio.create_task_group() as group:
            for start in range(10):
                group.start_soon(create, names[start::10])
        await asleep(js, subjects, HEAD)
        engine.computed.clear()
        commits, requests = await lasts(js, subjects), await js.stream_info(subjects.requests_stream)
        for number in range(EDITS):
            edits = [Set("a", number), Set(f"new{number}", number)]
            await client.enqueue_updates_with_reply("ws", "main", edits, wait="derived")
        await asleep(js, subjects, HEAD)
        now = await lasts(js, subjects)
        assert {name for name, last in now.items() if last != commits[name]} == {"main"}
        after = await js.stream_info(subjects.requests_stream)
        assert after.last_sequence == requests.last_sequence + EDITS
        assert set(engine.computed) <= {str(HEAD)}

        began = time.monotonic()
        for name in names:
            await publish_task(js, subjects, ChangeSetKey("ws", name))
        with anyio.fail_after(600):
            while any(info.behind for info in await client.branches("ws")):  # noqa: ASYNC110 - as a user would
                await anyio.sleep(0.1)
        seconds = time.monotonic() - began
        await asleep(js, subjects, None)
        for info in await client.branches("ws"):
            if info.change_set != "main":
                kinds = await kinds_after(client, info.change_set, commits[info.change_set])
                assert kinds in (["replay"], ["replay", "dvu"]), "one commit, and one with what follows from it"
        record_property("told", f"sleeping branches: {count:,} level {seconds:.1f} s after they were woken")


async def asleep(js: JetStream, subjects: Subjects, key: ChangeSetKey | None) -> None:
    """Return when no server owns `key`, or, without `key`, any change set."""
    pattern = subjects.task(key) if key is not None else f"{subjects.root}.tasks.>"
    with anyio.fail_after(600):
        while await js.next(subjects.tasks_stream, pattern, 1) is not None:  # noqa: ASYNC110 - as a user would
            await anyio.sleep(0.05)


async def lasts(js: JetStream, subjects: Subjects) -> dict[str, int]:
    """Return the sequence of the newest commit of each change set."""
    info = await js.stream_info(subjects.commits_stream)
    found: dict[str, int] = {}
    sequence = 1
    while sequence <= info.last_sequence:
        message = await js.next(subjects.commits_stream, f"{subjects.root}.commits.>", sequence)
        if message is None:
            break
        found[message.subject.rpartition(".")[2]] = message.sequence
        sequence = message.sequence + 1
    return found


async def kinds_after(client: RebaserClient, name: str, after: int) -> list[str]:
    """Return the kinds of the commits after a log sequence."""
    last = (await client.state("ws", name)).last
    kinds: list[str] = []
    async for commit in client.watch("ws", name, after=after):
        if commit.kind is not Kind.CHECKPOINT:
            kinds.append(commit.kind.value)
        if commit.sequence >= last:
            break
    return kinds
