"""Commits that owners prepare together are what each owner would make itself, and are used only if they fit."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from rebaser.change_set import rounds
from rebaser.change_set.attempts.poison import PoisonDetector, Suspicion
from rebaser.change_set.log import commit_log
from rebaser.change_set.log.encoded_commit import UnstorableCommit
from rebaser.change_set.processor import Processor
from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.change_set.rounds import Preparation, prepare_together
from rebaser.runtime.round import MAX_OWNERS, Round
from rebaser_client.jetstream import JetStream, Message
from rebaser_client.signal import Signal
from rebaser_core.commit import Attempt, Kind
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Recompute, Remove, Set
from tests.support.poison import KEY, Fleet, Owner

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


class Participant:
    """An owner whose queue holds `messages`."""

    def __init__(self, messages: Sequence[Message], processor: Processor | None = None) -> None:
        self.decide_now = Signal()
        self.messages = messages
        self.processor = processor
        self.prepared = 0
        self.turn = Round()
        self.bug: Exception | None = None
        self.failures: list[Exception] = []

    def check_queue(self) -> None:
        if self.bug is not None:
            raise self.bug
        self.turn.join(self, prepare_together)

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def prepare(self) -> Preparation | None:
        self.prepared += 1
        return None if self.processor is None else self.processor.prepare(self.messages)


@pytest.fixture
def fleet(js: JetStream, subjects: Subjects) -> Fleet:
    return Fleet(js, subjects)


async def decide_prepared(owner: Owner) -> None:
    """Decide the queued requests one by one. The commit of each is prepared, if that is possible."""
    for message in list(owner.queued):
        messages = [message]
        prepare_together([Participant(messages, owner.processor)])
        done = await owner.processor.process(messages)
        assert not done.rest
        assert not done.dead


def forbid(monkeypatch: pytest.MonkeyPatch, *, preparing: bool) -> None:
    """Forbid that commits are prepared; or, if `preparing` is false, that the owner makes them itself."""

    def fail(*_: object) -> None:
        raise AssertionError

    if preparing:
        monkeypatch.setattr(RequestReader, "read_plain", fail)
    else:
        monkeypatch.setattr(RequestReader, "read", fail)
        monkeypatch.setattr(commit_log.CommitLog, "encode", fail)


async def test_a_prepared_commit_is_appended(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    await fleet.send("a", "b", "a2")
    async with fleet.owner(redelivered=False) as owner:
        forbid(monkeypatch, preparing=False)
        await decide_prepared(owner)
        assert owner.commits.state.values().keys() == {"a", "b", "a2"}
    assert await fleet.log() == [(Kind.REBASE, ["a"]), (Kind.REBASE, ["b"]), (Kind.REBASE, ["a2"])]


async def test_a_log_that_has_grown_gets_a_commit_that_follows_its_end(fleet: Fleet) -> None:
    await fleet.send("a")
    async with fleet.owner(redelivered=False) as owner:
        commits, messages = owner.commits, list(owner.queued)
        prepare_together([Participant(messages, owner.processor)])
        async with commits.append_lock():
            await commits.append(commits.draft(Kind.ATTEMPT, attempt=Attempt(99, 1, 1)))
        await owner.processor.process(messages)
        assert commits.state.values()["a"].value == 1
    assert await fleet.log() == [(Kind.ATTEMPT, []), (Kind.REBASE, ["a"])]


async def test_a_request_that_was_decided_before_gets_no_second_commit(fleet: Fleet) -> None:
    await fleet.send("a")
    async with fleet.owner(redelivered=False) as owner:
        messages = list(owner.queued)
        for _ in range(2):
            prepare_together([Participant(messages, owner.processor)])
            await owner.processor.process(messages)
    assert await fleet.log() == [(Kind.REBASE, ["a"])]


async def test_a_commit_that_was_prepared_for_other_messages_is_not_used(fleet: Fleet) -> None:
    await fleet.send("a", "b")
    async with fleet.owner(redelivered=False) as owner:
        messages = list(owner.queued)
        prepare_together([Participant(messages[:1], owner.processor)])
        await owner.processor.process(messages)
    assert await fleet.log() == [(Kind.REBASE, ["a", "b"])]


@pytest.mark.parametrize("stage", ["decide", "of_small_batch", "check_commit"])
async def test_an_error_while_preparing_leaves_the_work_to_the_owner(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def fail(*_: object) -> None:
        raise UnprocessableError("not today")

    await fleet.send("a")
    monkeypatch.setattr(rounds, stage, fail)
    async with fleet.owner(redelivered=False) as owner:
        await decide_prepared(owner)
    assert await fleet.log() == [(Kind.REBASE, ["a"])]


async def test_suspects_are_attempted_alone_and_prepared_by_nobody(fleet: Fleet) -> None:
    await fleet.send("a")
    async with fleet.owner(redelivered=True) as owner:
        messages = list(owner.queued)
        assert owner.processor.prepare(messages) is None
        await owner.decide_all()
    assert [kind for kind, _ in await fleet.log()] == [Kind.ATTEMPT, Kind.REBASE]


async def test_a_commit_that_cannot_be_stored_is_made_again_by_the_owner(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.send("a")
    async with fleet.owner(redelivered=False) as owner:
        publish, tried = owner.commits.publish, list[object]()

        async def refuse_once(encoded: Any) -> int:
            tried.append(encoded)
            if len(tried) == 1:
                raise UnstorableCommit("too large")
            return await publish(encoded)

        monkeypatch.setattr(owner.commits, "publish", refuse_once)
        await decide_prepared(owner)
        assert len(tried) == 2
    assert await fleet.log() == [(Kind.REBASE, ["a"])]


async def test_nothing_is_prepared_for_a_request_that_is_rejected_unread(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.send("a")
    async with fleet.owner(redelivered=False) as owner:
        rejected = Suspicion({owner.queued[0].stream_sequence: QueuedRequest(1, RequestId("a"))})
        monkeypatch.setattr(PoisonDetector, "examine", lambda *_: rejected)
        assert owner.processor.prepare(owner.queued) is None


@pytest.mark.parametrize(
    ("about", "headers"),
    [
        ({"updates": (Set("a", 1), Set("b", [1.5, None]))}, {}),
        ({"updates": ()}, {}),
        ({"updates": (Set("a", 1),), "author": "ann", "message": "why"}, {}),
        ({"updates": (Derive("d", "sum", {"of": ("a", "b")}),)}, {}),
        ({"updates": (Remove("a"),), "from_change_set_id": "other"}, {}),
        ({"updates": (Set("a", 1),), "expect_at": 3}, {}),
        ({"updates": (), "recompute": Recompute()}, {}),
        ({"updates": (Set("a", 1),)}, {"X-Redrives": "1"}),
        ({"updates": tuple([Set(f"v{number}", number) for number in range(40)])}, {}),
        ({"updates": (Set("a", "x" * 2_000),)}, {}),
    ],
    ids=["plain", "empty", "author", "derive", "from", "expect", "recompute", "redriven", "many", "large"],
)
async def test_a_request_is_read_alike_by_each_way(
    fleet: Fleet, about: dict[str, Any], headers: dict[str, str]
) -> None:
    request = EnqueueUpdatesRequest(RequestId("r"), KEY.workspace, KEY.change_set, **about)
    given, payload = encode(request)
    message = Message(fleet.subjects.requests(KEY), "$JS.ACK.s.c.1.7.1.1795909945338914643.0", payload, given | headers)
    reader = RequestReader(fleet.context, KEY)
    with forced(Thresholds(plain_request_max_updates=-1)):
        slow = await reader.read(message)
        assert reader.read_plain(message) is None
    assert await reader.read(message) == slow
    assert reader.read_plain(message) in (None, slow)


async def test_a_request_for_another_change_set_is_not_plain(fleet: Fleet) -> None:
    given, payload = encode(EnqueueUpdatesRequest(RequestId("r"), KEY.workspace, "another", (Set("a", 1),)))
    message = Message(fleet.subjects.requests(KEY), "$JS.ACK.s.c.1.7.1.1795909945338914643.0", payload, given)
    reader = RequestReader(fleet.context, KEY)
    assert reader.read_plain(message) is None
    error = (await reader.read(message)).error
    assert error is not None
    assert error.code == "wrong_change_set"


@pytest.mark.parametrize("owes", [False, True])
async def test_a_commit_is_encoded_alike_by_each_way(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, owes: bool) -> None:
    async with fleet.owner(redelivered=False) as owner:
        commits = owner.commits
        fields: dict[str, Any] = {"covers": 3, "debt": 1} if owes else {}
        commit = commits.draft(Kind.REBASE, delta=(Set("a", 1), Set("b", "x")), before=(Set("a", 0),), **fields)
        plain = commits.encode_plain(commit)
        assert plain is not None
        assert await commits.encode(commit) == plain
        monkeypatch.setattr(commit_log, "PLAIN_MAX_EDITS", 0)
        assert commits.encode_plain(commit) is None
        assert await commits.encode(commit) == plain


async def test_a_commit_with_parts_in_blobs_is_not_plain(fleet: Fleet) -> None:
    async with fleet.owner(redelivered=False) as owner:
        commits = owner.commits
        commit = commits.draft(Kind.REBASE, delta=(Set("a", "x" * 500),), before=())
        for limits in (Thresholds(inline_max_updates=0), Thresholds(inline_max_bytes=200)):
            with forced(limits):
                assert commits.encode_plain(commit) is None
                assert (await commits.encode(commit)).commit.delta_blob is not None


async def test_owners_of_one_turn_prepare_together_and_then_all_proceed() -> None:
    many, turn = [Participant(()) for _ in range(MAX_OWNERS + 1)], Round()
    for one in many:
        turn.join(one, prepare_together)
    assert not any(one.prepared for one in many)
    await asyncio.sleep(0)
    assert [one.prepared for one in many] == [1] * MAX_OWNERS + [0]
    with anyio.fail_after(5):
        for one in many:
            await one.decide_now.wait()
    assert many[-1].prepared == 0  # one owner alone gains nothing


async def test_owners_whose_requests_have_arrived_join_in_the_same_turn() -> None:
    both, turn = [Participant(()), Participant(())], Round()
    for one in both:
        one.turn = turn
        turn.arrived(one)
    await asyncio.sleep(0)
    assert [one.prepared for one in both] == [1, 1]
    with anyio.fail_after(5):
        for one in both:
            await one.decide_now.wait()


async def test_an_owner_that_cannot_check_its_queue_fails_alone() -> None:
    owners, turn = [Participant(()) for _ in range(3)], Round()
    owners[0].bug = OSError("the log is full")
    for _ in range(2):  # the round after one with a failed owner runs, too
        for one in owners:
            one.turn = turn
            turn.arrived(one)
        with anyio.fail_after(5):
            for one in owners[1:]:
                await one.decide_now.wait()
                one.decide_now.clear()
    assert owners[0].failures == [owners[0].bug] * 2
    assert [one.failures for one in owners[1:]] == [[], []]


async def test_an_owner_whose_commit_is_not_prepared_in_time_makes_it_itself(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "MAX_TIME", 0.0)
    await fleet.send("a")
    async with fleet.owner(redelivered=False) as owner:
        forbid(monkeypatch, preparing=True)
        await decide_prepared(owner)
    assert await fleet.log() == [(Kind.REBASE, ["a"])]


async def test_an_owner_alone_can_be_made_to_prepare() -> None:
    alone = Participant(())
    with forced(Thresholds(round_min_owners=1)):
        Round().join(alone, prepare_together)
        with anyio.fail_after(5):
            await alone.decide_now.wait()
    assert alone.prepared == 1


async def test_owners_proceed_even_if_preparing_fails() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a bug")

    both, turn, errors = [Participant(()), Participant(())], Round(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: errors.append(about["exception"]))
    for one in both:
        turn.join(one, fail)
    with anyio.fail_after(5):
        for one in both:
            await one.decide_now.wait()
    assert [str(error) for error in errors] == ["a bug"]
