"""An append whose result is unknown is repeated until it is known. Also: how large the log after the checkpoint is."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from rebaser.change_set.log import checkpointer, commit_log
from rebaser.change_set.log.commit_log import CommitLog
from rebaser_client.jetstream import ApiError, NoAnswerError, NoRespondersError
from rebaser_client.jetstream.errors import TRY_AGAIN, WRONG_LAST_SEQUENCE
from rebaser_client.log.reader import LoadedState
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import Commit, Kind
from rebaser_core.encoding.envelope import MESSAGE_VERSION
from rebaser_core.errors import FencedError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set
from rebaser_core.values import Json

pytestmark = pytest.mark.anyio

FULL = ApiError(503, 10077, "maximum bytes exceeded")
STALE = ApiError(400, WRONG_LAST_SEQUENCE, "wrong last sequence")
BUSY = ApiError(503, TRY_AGAIN, "try again")
UNANSWERED = (NoAnswerError("no answer"), NoRespondersError("nobody"), NotConnectedError("no connection"))


class Stream:
    """A stream that answers publishes with `answers`, in order: an exception, or None for an ack. Reads return
    `found`."""

    def __init__(self, *answers: Exception | None, found: object = None, outages: int = 0) -> None:
        self.answers = list(answers)
        self.found = found
        self.outages = outages
        self.published: list[tuple[dict[str, str], bytes, int]] = []

    async def publish(
        self, _: str, payload: bytes, headers: dict[str, str], *, expected_last_subject_sequence: int, **__: object
    ) -> object:
        self.published.append((headers, payload, expected_last_subject_sequence))
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return SimpleNamespace(sequence=expected_last_subject_sequence + 1)

    async def next(self, _: str, __: str, sequence: int) -> object:
        assert sequence == self.published[-1][2] + 1
        if self.outages:
            self.outages -= 1
            raise TransientError("no answer")
        if self.found == "ours":
            headers, payload = self.published[0][:2]
            return SimpleNamespace(headers=headers, data=payload, sequence=5)
        return self.found


class Blobs:
    """Keeps the blobs that are put, and calls `at_put` before each."""

    def __init__(self, at_put: Callable[[], Awaitable[object]] | None = None) -> None:
        self.kept: list[bytes] = []
        self._at_put = at_put

    async def put(self, data: bytes) -> str:
        if self._at_put is not None:
            await self._at_put()
        self.kept.append(data)
        return address_of(data)


def log_on(stream: Stream, blobs: Blobs | None = None, inline_max: int = 100_000) -> CommitLog:
    return CommitLog(
        cast("Any", stream),
        Subjects(""),
        ChangeSetKey("ws", "cs"),
        LoadedState(ChangeSetState()),
        blobs=cast("Any", blobs),
        owner="test",
        inline_max=inline_max,
        retry_window=60.0,
        now_ms=lambda: 1,
        new_id=lambda: "0" * 26,
    )


async def append(commits: CommitLog, value: Json = 1) -> int:
    async with commits.append_lock():
        return await commits.append(commits.draft(Kind.REBASE, delta=(Set("a", value),)))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts. None of them takes any time here."""
    made: list[float] = []
    sleep = anyio.sleep

    async def pause(seconds: float) -> None:
        made.append(seconds)
        await sleep(0)

    monkeypatch.setattr(commit_log.anyio, "sleep", pause)  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("unanswered", UNANSWERED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("refusal", [FULL, BUSY], ids=["full", "busy"])
async def test_what_may_have_landed_is_repeated_whatever_is_refused_meanwhile(
    unanswered: Exception, refusal: Exception, pauses: list[float]
) -> None:
    """If the append was stored and the owner believed that it was refused, the owner's state would differ from the
    log."""
    stream = Stream(unanswered, refusal, refusal, STALE, found="ours")
    commits = log_on(stream)
    assert await append(commits) == 5
    assert (commits.state.last, "a" in commits.state.cells) == (5, True)
    assert stream.published == [stream.published[0]] * 4
    assert all(pauses[at] > 0 for at in range(3))


async def test_what_is_refused_at_once_has_not_landed() -> None:
    stream = Stream(FULL)
    commits = log_on(stream)
    with pytest.raises(TransientError) as error:
        await append(commits)
    assert (error.value.code, commits.state.last) == ("commit_refused", 0)


async def test_a_server_that_is_busy_is_asked_again() -> None:
    assert await append(log_on(Stream(BUSY, BUSY, None))) == 1


async def test_the_owner_of_a_commit_is_looked_for_through_an_outage() -> None:
    stream = Stream(UNANSWERED[0], STALE, found="ours", outages=3)
    assert await append(log_on(stream)) == 5


@pytest.mark.parametrize("found", ["nothing", "junk", "newer"])
async def test_what_somebody_else_appended_fences_the_owner(found: str) -> None:
    """This includes a server of a later release. Otherwise, this owner would give back a task that is no longer its
    own."""
    headers, payload = encode_commit(Commit("c", 0, Kind.REBASE, 1, "other", None, None))
    stored = {
        "nothing": None,
        "junk": SimpleNamespace(headers={}, data=b"junk", sequence=5),
        "newer": SimpleNamespace(headers=headers | {MESSAGE_VERSION: "99"}, data=payload, sequence=5),
    }
    commits = log_on(Stream(STALE, found=stored[found]))
    with pytest.raises(FencedError):
        await append(commits)
    assert commits.state.last == 0


@pytest.mark.parametrize("at", ["before", "meanwhile"])
async def test_an_owner_that_is_abandoned_repeats_nothing(at: str) -> None:
    stream = Stream(*[NoAnswerError("no answer")] * 100)
    commits = log_on(stream)
    if at == "before":
        commits.abandon()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def fenced() -> None:
                with pytest.raises(FencedError):
                    await append(commits)

            group.start_soon(fenced)
            if at == "meanwhile":
                while not stream.published:
                    await anyio.lowlevel.checkpoint()
                commits.abandon()
    assert len(stream.published) < 10
    assert commits.state.last == 0


async def test_an_owner_that_is_abandoned_looks_for_its_commit_no_longer() -> None:
    stream = Stream(STALE, outages=1_000_000)
    commits = log_on(stream)

    async def fenced() -> None:
        with pytest.raises(FencedError):
            await append(commits)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(fenced)
            while stream.outages == 1_000_000:
                await anyio.lowlevel.checkpoint()
            commits.abandon()
    assert commits.state.last == 0


class HangsAtFirst(Stream):
    """A stream that stores the first publish, and never answers it."""

    def __init__(self, *answers: Exception | None, found: object = None) -> None:
        super().__init__(*answers, found=found)
        self.asked = anyio.Event()

    async def publish(self, *given: Any, **more: Any) -> object:
        if not self.asked.is_set():
            self.answers.insert(0, None)
            await super().publish(*given, **more)
            self.asked.set()
            await anyio.sleep_forever()
        return await super().publish(*given, **more)


async def test_an_append_that_is_cancelled_is_settled_first() -> None:
    """Otherwise, a later commit, such as one that takes an attempt back, would be built on a state that differs from
    the log."""
    stream = HangsAtFirst(FULL, STALE, found="ours")
    commits = log_on(stream)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group, anyio.create_task_group() as owner:

            async def stop() -> None:
                await stream.asked.wait()
                owner.cancel_scope.cancel()

            group.start_soon(stop)
            await append(commits)
            await anyio.sleep_forever()
    assert (commits.state.last, "a" in commits.state.cells) == (5, True)
    assert stream.published == [stream.published[0]] * 3


async def test_a_view_is_opened_when_no_thread_reads_an_older_one() -> None:
    """A thread of an abandoned update runs on for a while, and must not see rows change."""
    commits = log_on(Stream(None, None))
    await append(commits)
    opened = anyio.Event()

    async def open_view() -> None:
        async with commits.view():
            opened.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            with commits.state.view():
                await append(commits, 2)
                group.start_soon(open_view)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                assert not opened.is_set()
            await opened.wait()


# -- how much a reader has to read -----------------------------------------------------------------------------------


async def test_a_delta_in_a_blob_weighs_what_the_blob_does() -> None:
    """Otherwise, a log of large deltas would get no checkpoint, and loading it would take longer and longer."""
    blobs = Blobs()
    commits = log_on(Stream(None), blobs, inline_max=100)
    await append(commits, "x" * 10_000)
    assert commits.tail_weight > len(blobs.kept[0]) > 10_000


async def test_what_is_appended_while_a_checkpoint_is_stored_is_not_part_of_it() -> None:
    commits = log_on(Stream(*[None] * 5))
    grown: list[int] = []

    async def append_meanwhile() -> None:
        before = commits.tail_weight
        await append(commits, "y" * 1000)
        grown.append(commits.tail_weight - before)

    blobs = Blobs(append_meanwhile)
    await append(commits, "x" * 20_000)
    await checkpointer.store(cast("Any", blobs), commits)
    assert grown
    assert sum(grown) < commits.tail_weight < sum(grown) + 10_000
    assert commits.state.checkpoint is not None
    assert commits.state.checkpoint.sequence == 1
