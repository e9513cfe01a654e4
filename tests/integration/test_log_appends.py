"""Appends to the log: they are fenced, settled if they are unanswered, and given up when a server ends."""

from contextlib import aclosing

import anyio
import numpy as np
import pytest

from rebaser_client import RebaserClient
from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError
from rebaser_client.jetstream.errors import STORE_FAILED
from rebaser_client.jetstream.infos import PubAck
from rebaser_core import thresholds
from rebaser_core.commit import Kind
from rebaser_core.errors import FencedError
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.kinds import FLOAT, TRUE
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Set
from tests.support.owned_log import KEY, Log, OpenLog

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_the_second_of_two_owners_is_fenced_and_its_state_untouched(open_log: OpenLog) -> None:
    one, two = await open_log().load(), await open_log().load()
    await one.append(Set("a", 1))
    with pytest.raises(FencedError):
        await two.append(Set("a", 2))
    assert two.commits.state.cells == {}
    assert (await one.reader.load(KEY)).state.cells["a"].value == 1


async def test_an_append_whose_answer_is_lost_is_repeated_and_lands_once(
    open_log: OpenLog, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat is refused because the first append succeeded; the commit in the log shows that."""
    log = await open_log().load()
    real, lost = JetStream.publish, [True]

    async def publish(self: JetStream, subject: str, payload: bytes, *args: object, **more: object) -> PubAck:
        ack = await real(self, subject, payload, *args, **more)  # type: ignore[arg-type]
        if ".commits." in subject and lost and lost.pop():
            raise NoAnswerError("the answer was lost")
        return ack

    monkeypatch.setattr(JetStream, "publish", publish)
    sequence = await log.append(Set("a", 1))
    assert not lost
    assert (await log.append(Set("b", 2))) == sequence + 1
    assert len((await log.reader.load(KEY)).state.cells) == 2


async def test_an_append_that_may_have_landed_is_settled_though_its_repeat_is_refused(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal, for instance for lack of space, says nothing about the first append."""
    log = await open_log().load()
    real = JetStream.publish
    troubles = [ApiError(503, STORE_FAILED, "no space left on device"), NoAnswerError("the answer was lost")]

    async def publish(self: JetStream, subject: str, payload: bytes, *args: object, **more: object) -> PubAck:
        ack = await real(self, subject, payload, *args, **more) if len(troubles) != 1 else None  # type: ignore[arg-type]
        if troubles:
            raise troubles.pop()
        assert ack is not None
        return ack

    monkeypatch.setattr(JetStream, "publish", publish)
    sequence = await log.append(Set("a", 1))
    assert not troubles
    assert (await log.reader.load(KEY)).state.last == sequence


async def test_an_append_whose_caller_is_cancelled_is_settled(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that is stopped gives nothing back while an append may still succeed."""
    log = await open_log().load()
    real, scope = JetStream.publish, anyio.CancelScope()

    async def publish(self: JetStream, subject: str, payload: bytes, *args: object, **more: object) -> PubAck:
        scope.cancel()
        return await real(self, subject, payload, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(JetStream, "publish", publish)
    with scope:
        await log.append(Set("a", 1))
    assert log.commits.state.cells.keys() == {"a"}
    assert (await log.reader.load(KEY)).state.last == log.commits.state.last


async def test_an_append_after_a_shutdown_ran_out_of_time_is_given_up(open_log: OpenLog) -> None:
    """Nothing cancels the append, so without an answer the server would never end."""
    log = await open_log().load()
    log.commits.abandon()
    with pytest.raises(FencedError, match="shutdown"):
        await log.append(Set("a", 1))


@pytest.mark.parametrize("call", ["publish", "next"], ids=["the append", "whose it is"])
async def test_an_append_that_nobody_answers_is_given_up_when_a_shutdown_runs_out_of_time(
    open_log: OpenLog, js: JetStream, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = await open_log().load()
    if call == "next":
        await js.publish(log.subjects.commits(KEY), b"somebody else's")
    asked = anyio.Event()
    given_up = False

    async def unanswered(*_: object, **__: object) -> None:
        assert not given_up, "still asked for"  # the append is shielded, and would be repeated for ever
        asked.set()
        raise NoAnswerError("NATS is away")

    async def append() -> None:
        with pytest.raises(FencedError, match="shutdown"):
            await log.append(Set("a", 1))

    monkeypatch.setattr(JetStream, call, unanswered)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(append)
            await asked.wait()
            log.commits.abandon()
            given_up = True


async def test_a_large_delta_goes_through_a_blob(js: JetStream, subjects: Subjects, nats_url: str) -> None:
    log = await Log(js, subjects, inline_max=1000).load()
    await log.append(*(Set(f"v{number}", "x" * 50) for number in range(100)))
    stored = await log.reader.last(KEY)
    assert stored is not None
    assert stored.delta_blob is not None
    assert len((await log.reader.load(KEY)).state.cells) == 100
    async with (
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
        aclosing(client.watch(KEY.workspace, KEY.change_set, after=0)) as commits,
    ):
        with anyio.fail_after(60):
            assert len((await anext(commits)).delta) == 100


@pytest.mark.parametrize("count", [thresholds.now.inline_table_max_rows, thresholds.now.inline_table_max_rows + 1])
async def test_what_an_update_found_stands_in_its_commit_unless_it_is_much(open_log: OpenLog, count: int) -> None:
    log = await open_log().load()
    await log.append(*(Derive(f"v{at}", "sum", {}) for at in range(count)))
    commits, numbers = log.commits, np.linspace(0, 1, count)
    kinds = np.full(count, FLOAT, np.uint8)
    kinds[7] = TRUE
    found = ComputedTable([f"v{at}" for at in range(count)], kinds, numbers.view(np.int64))
    async with commits.append_lock():
        covers = commits.state.last
        await commits.append(commits.draft(Kind.DVU, covers=covers, delta=found))
    last = await log.reader.last(KEY)
    assert last is not None
    assert (last.delta_blob is None) == (count <= thresholds.now.inline_table_max_rows)
    cells = (await log.reader.load(KEY)).state.cells
    assert cells == commits.state.cells
    assert [cells[f"v{at}"].value for at in (6, 7)] == [numbers[6], True]
