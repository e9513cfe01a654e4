"""Requests in random batches: whatever ends a batch or splits a commit, each is decided once, in order, and deleted.

A batch ends at a request that is decided alone, at one that has to wait, and at requests that a dead owner may have
taken. A commit that cannot be stored is split. Here these cases occur in random combinations, with several owners one
after the other.
"""

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from rebaser.change_set.attempts.held_requests import QueueBlocked
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit, UnstorableCommit
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.address import address_of
from rebaser_core.branches.branch import Action
from rebaser_core.commit import Commit, Marking, Outcome, Reverts
from rebaser_core.encoding.envelope import REDRIVE
from rebaser_core.errors import RebaserError
from rebaser_core.ids import RequestId, sequence_id
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set
from tests.support.poison import KEY, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

REQUESTS = 14
ROOM = 2048  # bytes of blobs in one commit


async def send(fleet: Fleet, rng: random.Random, id_: str) -> tuple[str, Outcome | None]:
    """Send a request of a random kind. Return the id under which it is decided, and its outcome; None if it is decided
    already."""
    kind = rng.choice(("small", "small", "small", "blob", "large", "broken", "mark", "revert", "again", "newer"))
    action: Action | None = None
    blob: bytes | None = None
    outcome: Outcome | None = Outcome.SUCCESS
    if kind in ("blob", "large"):
        blob = encode_updates_blob([Set("large", "x" * (ROOM * 2 if kind == "large" else 600)), Set("a", id_)])
    elif kind == "broken":
        blob, outcome = b"no updates", Outcome.DEAD
    elif kind == "mark":
        action = Marking(protected=False)
    elif kind == "revert":  # of a commit that never exists
        action, outcome = Reverts(10**6, 10**6), Outcome.ERROR
    elif kind == "again":
        id_, outcome = "first", None
    edit = Set("first", 1) if kind == "again" else Set("a", id_)
    updates = None if action is not None or blob is not None else (edit,)
    if blob is not None:
        await fleet.context.blobs.put(blob)
    address = None if blob is None else address_of(blob)
    request = EnqueueUpdatesRequest(RequestId(id_), KEY.workspace, KEY.change_set, updates, address, action=action)
    headers, payload = encode(request)
    if kind == "newer":  # it waits for a newer server, and is given up
        headers["X-MESSAGE-VERSION"], outcome = "99", Outcome.DEAD
    ack = await fleet.js.publish(fleet.subjects.requests(KEY), payload, headers)
    return (sequence_id(ack.sequence) if kind == "newer" else id_), outcome


def unstorable(rng: random.Random, bad: str) -> Callable[..., Awaitable[EncodedCommit]]:
    """Replace `CommitLog.encode`: it refuses commits with too many requests, and each commit that applies `bad` or
    decides it together with others."""
    encode_commit = CommitLog.encode

    async def refusing(commits: CommitLog, commit: Commit, *more: Any) -> EncodedCommit:
        ids = [one.request_id for one in commit.requests if one.outcome is Outcome.SUCCESS]
        if len(commit.requests) > rng.choice((1, 2, 4, REQUESTS)) or bad in ids:
            raise UnstorableCommit("too many for this test")
        return await encode_commit(commits, commit, *more)

    return refusing


@pytest.mark.parametrize("seed", range(40))
async def test_each_request_is_decided_once_and_in_order_however_batches_are_split(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    fleet = Fleet(js, subjects)
    fleet.now_ms = time.time_ns() // 1_000_000
    limits = {
        "batch_max_bytes": ROOM,
        "batch_max_requests": rng.randint(1, REQUESTS),
        "max_attempts": rng.randint(1, 3),
    }
    fleet.context = replace(fleet.context, settings=fleet.context.settings.model_copy(update=limits))
    await fleet.send("first")
    async with fleet.owner(redelivered=False) as owner:
        await owner.decide_all()
    expected: dict[str, Outcome] = {}
    for number in range(REQUESTS):
        id_, outcome = await send(fleet, rng, f"r{number}")
        if outcome is not None:
            expected[id_] = outcome
    good = [id_ for id_, outcome in expected.items() if outcome is Outcome.SUCCESS]
    bad = rng.choice(["none", *good])
    monkeypatch.setattr(CommitLog, "encode", unstorable(rng, bad))
    if bad in expected:
        expected[bad] = Outcome.DEAD
    internal = 0
    held: QueueBlocked | None = QueueBlocked(RebaserError("not tried yet"), 0.0, 0.0, [])
    while held is not None:
        held = None
        async with fleet.owner(redelivered=rng.random() < 0.3) as owner:
            try:
                await owner.decide_all()
            except QueueBlocked as error:
                held = error
            assert owner.commits.state.applied == owner.processor.applied
            if held is not None:
                internal += held.code == "internal"
                assert held.code in ("internal", "unsupported_version")
                [attempted] = owner.commits.state.attempts
                assert attempted > owner.processor.applied.sequence
        fleet.now_ms += rng.choice((1_000, 31_000))
    monkeypatch.undo()
    assert internal == (limits["max_attempts"] if bad in expected else 0)
    decided: dict[str, Outcome] = {}
    async for commit in fleet.context.reader.back(KEY):
        for one in reversed(commit.requests):
            assert one.request_id not in decided
            decided[one.request_id] = one.outcome
    assert list(reversed(decided.items())) == [("first", Outcome.SUCCESS), *expected.items()]
    state = (await fleet.context.reader.load(KEY)).state
    assert state.attempts == {}
    await fleet.context.deleter.flush()
    dead = [id_ for id_, outcome in expected.items() if outcome is Outcome.DEAD]
    left = await js.subject_counts(subjects.requests_stream, subjects.requests(KEY))
    with anyio.fail_after(120):
        # Deletes may be in progress. Nobody has copied dead requests to the dead letters.
        while sum(left.values()) > len(dead):
            left = await js.subject_counts(subjects.requests_stream, subjects.requests(KEY))
    assert sum(left.values()) == len(dead)


async def test_a_commit_is_no_later_than_what_it_decides_though_a_request_behind_that_waits(
    js: JetStream, subjects: Subjects
) -> None:
    """Outcomes are forgotten by the time of the last decided request; a waiting request may be decided hours later."""
    fleet = Fleet(js, subjects)
    await fleet.send("first")
    time.sleep(0.002)  # noqa: ASYNC251 - NATS stores the next request at least a millisecond later
    await fleet.send("newer", X_MESSAGE_VERSION="99")
    async with fleet.owner(redelivered=False) as owner:
        first, _ = owner.queued
        with pytest.raises(QueueBlocked):
            await owner.decide_all()
        assert owner.commits.state.outcomes.of(RequestId("first")).at_ms == first.timestamp_ns // 1_000_000


async def test_a_request_waits_no_longer_because_a_clock_was_ahead(js: JetStream, subjects: Subjects) -> None:
    """The next attempt is made when its time is over, at the latest."""
    fleet = Fleet(js, subjects)
    fleet.now_ms = time.time_ns() // 1_000_000 + 3_600_000
    await fleet.send("newer", X_MESSAGE_VERSION="99")
    fleet_ms = (fleet.now_ms, start := fleet.now_ms - 3_600_000, start + 5_000, start + 15_000, start + 29_000)
    for fleet.now_ms in fleet_ms:
        async with fleet.owner(redelivered=False) as owner:
            with pytest.raises(QueueBlocked) as blocked:
                await owner.decide_all()
        waited = max(fleet.now_ms - start, 0) / 1000 if fleet.now_ms != fleet_ms[0] else 0.0
        assert blocked.value.time_left == pytest.approx(fleet.context.settings.retry_for - waited)
        assert 0 < blocked.value.delay <= min(5.0, blocked.value.time_left + 0.1)
    fleet.now_ms = start + 31_000
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == ["unsupported_version"]


async def test_a_redriven_request_that_has_to_wait_waits_again(js: JetStream, subjects: Subjects) -> None:
    """Its blob may come back soon, and its earlier death does not count. Once the request is applied, no copy waits."""
    fleet = Fleet(js, subjects)
    fleet.now_ms = time.time_ns() // 1_000_000
    blob = encode_updates_blob([Set("a", 1)])
    request = EnqueueUpdatesRequest(RequestId("r"), KEY.workspace, KEY.change_set, None, address_of(blob))
    codes: list[str] = []

    async def decide() -> str:
        async with fleet.owner(redelivered=False) as owner:
            try:
                dead = await owner.decide_all()
            except QueueBlocked as blocked:
                return f"waits: {blocked.code}"
            return " ".join(dead) or "decided"

    async def send_again(redrive: int) -> None:
        headers, payload = encode(request)
        if redrive:
            headers[REDRIVE] = str(redrive)
        await js.publish(subjects.requests(KEY), payload, headers)

    for redrive in (0, 1):
        await send_again(redrive)
        codes.append(await decide())
        fleet.now_ms += 31_000
        codes.append(await decide())
        fleet.now_ms += 1_000_000  # a request that waits now does not share the time of that one
    await send_again(2)
    codes.append(await decide())
    await fleet.send("beside")  # so that the log has the content of the blob, and does not name it
    await fleet.context.blobs.put(blob)
    codes.append(await decide())
    await js.purge(f"OBJ_{subjects.blobs_bucket}")
    await send_again(2)
    codes.append(await decide())
    dead = ["waits: blob_missing", "blob_missing"]
    assert codes == [*dead, *dead, "waits: blob_missing", "decided", "decided"]
