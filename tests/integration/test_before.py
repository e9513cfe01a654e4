"""Tests what a commit records of the definitions that it replaced: inline, in blobs, and with history switched off."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from rebaser.change_set.log import commit_parts
from rebaser_client.jetstream import JetStream
from rebaser_core import thresholds
from rebaser_core.encoding.envelope import MESSAGE_VERSION
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Match, Remove, Set, Unset, Update
from tests.support.owned_log import KEY, Log, OpenLog

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.mark.parametrize(
    "limits",
    [
        Thresholds(),
        Thresholds(inline_max_bytes=1),
        Thresholds(inline_max_updates=2),
        Thresholds(inline_max_bytes=700),
        Thresholds(overlay_merge_step=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("pinned", [False, True])
async def test_a_commit_says_what_stood_before(open_log: OpenLog, pinned: bool, limits: Thresholds) -> None:
    log = await open_log().load()
    sum_ = Derive("s", "sum", {"x": ("a", Match("b*"))}, {"k": [1]})
    edits: list[tuple[Update, ...]] = [
        (Set("a", 1), Set("b", 1.0), sum_, Unset("u")),
        (Set("a", "x" * 300), Set("a", 2), Remove("b"), Set("n", None), Set("s", True)),
        (Remove("gone"), Remove("a"), Set("b", [1]), Unset("s")),
        (Set("u", "y" * 600), Derive("n", "f"), sum_),
        tuple(Set(f"v{n}", n) for n in range(5)),
        (*(Remove(f"v{n}") for n in range(5)), Remove("u")),
    ]
    stands: dict[str, Update] = {}
    with forced(limits), log.commits.state.view() if pinned else nullcontext():
        for delta in edits:
            sequence = await log.append(*delta)
            stored = await log.js.last(log.subjects.commits_stream, log.subjects.commits(KEY))
            assert stored is not None
            commit = log.reader.decode(stored.sequence, stored.headers, stored.data)
            assert commit is not None
            assert commit.sequence == sequence
            commit = await log.reader.with_before(await log.reader.with_delta(commit))
            expected = [stands[id_] for id_ in dict.fromkeys(one.id for one in delta) if id_ in stands]
            assert repr(commit.before) == repr(tuple(expected))
            assert repr(commit.delta) == repr(delta)
            for update in delta:
                stands[update.id] = update
                if isinstance(update, Remove):
                    del stands[update.id]


async def test_without_history_a_commit_is_as_the_last_release_wrote_it(js: JetStream, subjects: Subjects) -> None:
    log = await Log(js, subjects, history=False).load()
    await log.append(Set("a", 1))
    await log.append(Set("a", 2))
    stored = await js.last(subjects.commits_stream, subjects.commits(KEY))
    assert stored is not None
    assert stored.headers[MESSAGE_VERSION] == "1"
    commit = log.reader.decode(stored.sequence, stored.headers, stored.data)
    assert commit is not None
    assert (await log.reader.with_before(commit)).before is None
    reference = await log.write_checkpoint()
    assert b'"version":2' in await log.blobs.get(reference.address)


async def test_what_stood_before_is_unknown_where_it_would_take_too_much(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few small requests can remove all values of a large change set."""
    monkeypatch.setattr(commit_parts, "MAX_BEFORE", 2_000)
    log = await open_log().load()
    log.inline_max = 500
    await log.load()
    await log.append(*(Set(f"v{n}", "x" * 300) for n in range(5)))
    for ids in (range(1), range(1, 5)):
        await log.append(*(Set(f"v{n}", "y" * 300) for n in ids))
        last = await log.reader.last(KEY)
        assert last is not None
        before = (await log.reader.with_before(last)).before
        assert before is not None
        assert len(before) == len(ids)
    await log.append(*(Set(f"w{n}", "x" * 300) for n in range(10)))
    with forced(replace(thresholds.now, blob_slice_max_items=1)):
        await log.append(*(Remove(f"w{n}") for n in range(10)))
    last = await log.reader.last(KEY)
    assert last is not None
    assert last.before is None
    assert "w0" not in (await log.reader.load(KEY)).state.cells
