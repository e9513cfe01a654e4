"""Nothing is appended that its writer cannot read back: the log stays unchanged, and only the causing request is
affected."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rebaser.change_set.attempts.held_requests import QueueBlocked
from rebaser.change_set.loading import open_log
from rebaser.change_set.log import commit_log, commit_parts
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import UnstorableCommit
from rebaser.change_set.serial_dvu import SerialDvu
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client.jetstream import JetStream
from rebaser_core import thresholds
from rebaser_core.commit import Commit, Computed, Delta, Kind
from rebaser_core.ids import RequestId
from rebaser_core.messages import encode_commit, encode_delta
from rebaser_core.messages.computed_blob import encode_table
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.kinds import FLOAT, INT
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Set
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.owners import Engine
from tests.support.poison import KEY, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

Written = tuple[dict[str, str], bytes]

GARBLED: dict[str, Callable[[dict[str, str], bytes], Written]] = {
    "cut off": lambda headers, payload: (headers, payload[:-1]),
    "nothing": lambda headers, _: (headers, b""),
    "of another type": lambda headers, payload: (headers | {"X-MESSAGE-TYPE": "EnqueueUpdatesRequest"}, payload),
    "of no version": lambda headers, payload: (headers | {"X-MESSAGE-VERSION": "9"}, payload),
    "without what the sweeper reads": lambda headers, payload: (headers | {"X-Debt": "all"}, payload),
    "with another debt": lambda headers, payload: (headers | {"X-Debt": "7"}, payload),
    "with another value": lambda headers, payload: (headers, payload.replace(b"evalue\x01", b"evalue\x02")),
    "with an empty id": lambda headers, payload: (headers, payload.replace(b"aa", b"`", 1)),
}


@pytest.fixture
def context(js: JetStream, subjects: Subjects) -> Context:
    return context_of(js, subjects, Settings(server_id="test"), Engine())


async def append(commits: CommitLog, delta: Delta, kind: Kind = Kind.REBASE) -> int:
    async with commits.append_lock():
        return await commits.append(commits.draft(kind, delta=delta))


async def is_untouched(context: Context, commits: CommitLog) -> bool:
    """Return whether the log has only the first commit, and the owner can continue from there."""
    last = (await context.reader.load(KEY)).state.last
    return commits.state.last == last == 1 and await append(commits, (Set("c", 3),)) == 2


@pytest.mark.parametrize("garble", GARBLED.values(), ids=GARBLED)
async def test_a_commit_that_does_not_read_back_is_not_stored(
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    events: Events,
    garble: Callable[[dict[str, str], bytes], Written],
) -> None:
    commits = await open_log(context, KEY)
    await append(commits, (Set("b", 2),))
    with monkeypatch.context() as patch:
        patch.setattr(commit_log, "encode_commit", lambda commit: garble(*encode_commit(commit)))
        with pytest.raises(UnstorableCommit):
            await append(commits, (Set("a", 1),))
    assert len(events.named("commit_unreadable")) == 1
    assert await is_untouched(context, commits)


TABLE = ComputedTable([f"d{at}" for at in range(2000)], np.full(2000, FLOAT, np.uint8), np.arange(2000))
DAMAGED = {
    "an empty id": lambda table: encode_table(replace(table, ids=["", *table.ids[1:]])),
    "an id too few": lambda table: encode_table(replace(table, ids=table.ids[1:])),
    "an unprintable id": lambda table: encode_table(replace(table, ids=["\x07", *table.ids[1:]])),
    "another kind": lambda table: encode_table(replace(table, kinds=np.full(2000, INT, np.uint8))),
    "other bits": lambda table: encode_table(replace(table, bits=table.bits + 1)),
    "NaN": lambda table: encode_table(replace(table, bits=np.full(2000, -1))),
    "cut off": lambda table: encode_table(table)[:-1],
    "more behind it": lambda table: encode_table(table) + b"\0",
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
async def test_a_blob_that_does_not_read_back_is_named_by_no_commit(
    context: Context, monkeypatch: pytest.MonkeyPatch, damaged: Callable[[ComputedTable], bytes]
) -> None:
    commits = await open_log(context, KEY)
    await append(commits, (Set("b", 2),))
    with monkeypatch.context() as patch:
        patch.setattr(commit_parts, "encode_delta", lambda _: damaged(TABLE))
        with pytest.raises(UnstorableCommit):
            await append(commits, TABLE, Kind.DVU)
    assert await is_untouched(context, commits)


async def test_updates_in_a_blob_are_read_back_too(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = await open_log(context, KEY)
    await append(commits, (Set("b", 2),))
    many = tuple([Set(f"v{at}", at) for at in range(thresholds.now.inline_max_updates + 1)])
    with monkeypatch.context() as patch:
        patch.setattr(commit_parts, "encode_delta", lambda delta: encode_delta(delta[1:]))
        with pytest.raises(UnstorableCommit):
            await append(commits, many)
    assert await is_untouched(context, commits)
    assert await append(commits, many) == 3
    assert (await context.reader.load(KEY)).state.cells.keys() == {"b", "c", *(one.id for one in many)}


async def test_an_update_whose_results_do_not_read_back_is_tried_again(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = await open_log(context, KEY)
    derived = [Derive(f"d{at}", "sum", {"of": ("a", "a")}) for at in range(300)]
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.REBASE, covers=0, delta=(Set("a", 1), *derived), debt=301))
    assert isinstance(context.engine, Engine)
    context.engine.go.set()
    dvu = SerialDvu(context, commits, redelivered=False, hung=lambda: False)

    def nameless(commit: Commit) -> Written:
        return encode_commit(replace(commit, delta=(Computed(""), *commit.delta[1:])))

    with monkeypatch.context() as patch:
        patch.setattr(commit_log, "encode_commit", nameless)
        with pytest.raises(UnstorableCommit):
            await dvu.run()
    assert commits.state.owes
    await dvu.run()
    values = (await context.reader.load(KEY)).state.values()
    assert {value.value for id_, value in values.items() if id_ != "a"} == {2}


@pytest.fixture
def garbled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every commit that applies the request `bad` unreadable."""

    def encode(commit: Commit) -> Written:
        bad = any(one.request_id == "bad" for one in commit.requests) and bool(commit.delta)
        headers, payload = encode_commit(commit)
        return headers, payload[:-1] if bad else payload

    monkeypatch.setattr(commit_log, "encode_commit", encode)


@pytest.mark.usefixtures("garbled")
@pytest.mark.parametrize("queued", [("one", "bad", "two"), ("one", "bad")], ids=len)
async def test_a_request_whose_commit_does_not_read_back_pays_alone(
    js: JetStream, subjects: Subjects, queued: tuple[str, ...]
) -> None:
    """Its neighbours are applied. The request is tried as often as after other internal failures, and is dead then."""
    fleet = Fleet(js, subjects)
    await fleet.send(*queued)
    for _ in range(fleet.context.settings.max_attempts):
        async with fleet.owner(redelivered=False) as owner:
            with pytest.raises(QueueBlocked, match="cannot be read back"):
                await owner.decide_all()
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == ["internal"]
        assert (
            owner.commits.state.outcomes.of(RequestId("bad")).decision.attempts == fleet.context.settings.max_attempts
        )
    log = [requests for kind, requests in await fleet.log() if kind is Kind.REBASE]
    assert log == [[id_] for id_ in queued]


@pytest.mark.usefixtures("garbled")
async def test_a_request_whose_commit_does_not_read_back_pays_also_in_front_of_one_that_has_to_wait(
    js: JetStream, subjects: Subjects
) -> None:
    fleet = Fleet(js, subjects)
    await fleet.send("bad")
    await fleet.send("new", X_MESSAGE_VERSION="99")
    for _ in range(fleet.context.settings.max_attempts):
        async with fleet.owner(redelivered=False) as owner:
            with pytest.raises(QueueBlocked, match="cannot be read back"):
                await owner.decide_all()
    async with fleet.owner(redelivered=False) as owner:
        with pytest.raises(QueueBlocked) as blocked:
            await owner.decide_all()
    assert blocked.value.code == "unsupported_version"
    assert [requests for kind, requests in await fleet.log() if kind is Kind.REBASE] == [["bad"]]
