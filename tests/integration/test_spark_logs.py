"""The reads of the data source: commits in a range of log sequences, and the detection of purged ones."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from anyio import to_thread

from rebaser_client.jetstream import JetStream
from rebaser_client.log.branches import BranchInfo
from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_client.spark.source import StreamReader
from rebaser_core.commit import Commit, Kind
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY, OTHER = ChangeSetKey("shop", "main"), ChangeSetKey("shop", "draft")
CHAIN = [(KEY, 0), (KEY, 1), (OTHER, 0), (KEY, 2)]  # change set and `previous` of the commits 1 to 4


@pytest.fixture
async def log(js: JetStream, subjects: Subjects) -> None:
    for sequence, (key, previous) in enumerate(CHAIN, 1):
        commit = Commit(f"c{sequence}", previous, Kind.REBASE, 0, "owner", None, None, delta=(Set("a", sequence),))
        headers, payload = encode_commit(commit)
        await js.publish(subjects.commits(key), payload, headers)
    await js.publish(subjects.commits(KEY), b"?", {"X-MESSAGE-TYPE": "Foreign"})
    headers, payload = encode_commit(Commit("c6", 5, Kind.REBASE, 0, "owner", None, None))
    await js.publish(subjects.commits(KEY), payload, headers)


@pytest.fixture
async def logs(nats_url: str, subjects: Subjects, log: None) -> AsyncIterator[Logs]:
    async with Logs.connect(_options(nats_url, subjects)) as logs:
        yield logs


def _options(nats_url: str, subjects: Subjects, **more: str) -> SourceOptions:
    return SourceOptions.read({"nats": nats_url, "prefix": subjects.prefix, "workspace": "shop", **more})


async def read(logs: Logs, keys: list[ChangeSetKey] | None, after: int, until: int) -> list[int]:
    found = await logs.commits(keys, after, until)
    assert all(commit.id == f"c{commit.sequence}" for _, commit in found)
    return [commit.sequence for _, commit in found]


async def test_a_range_is_read_of_some_change_sets_or_all(logs: Logs) -> None:
    """A message that is not a commit is skipped, and does not count as a gap."""
    assert await logs.keys() == [OTHER, KEY]
    assert await logs.last() == 6
    assert await read(logs, None, 0, 6) == [1, 2, 3, 4, 6]
    assert await read(logs, None, 1, 3) == [2, 3]
    assert await read(logs, [KEY, OTHER], 1, 6) == [2, 4, 6, 3]
    assert await read(logs, [ChangeSetKey("shop", "nobody")], 0, 6) == []


async def test_a_time_is_the_position_of_the_last_commit_up_to_it(
    logs: Logs, js: JetStream, subjects: Subjects
) -> None:
    times = []
    for sequence in range(1, 7):
        stored = await js.get(subjects.commits_stream, sequence)
        assert stored is not None
        times.append(datetime.fromisoformat(stored.time))
    for time in times:
        until = max(number for number, other in enumerate(times, 1) if other <= time)
        assert await logs.cut(time) == until
    assert await logs.cut(times[0] - timedelta(seconds=1)) == 0
    assert (await logs.cut(None), await logs.cut(4)) == (None, 4)


async def test_both_sides_of_changes_are_read_at_the_same_position(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a table as of a position would change with the target."""
    asked: list[tuple[object, ...]] = []

    async def one(*_: object) -> BranchInfo:
        return BranchInfo("shop", "draft", 3, datetime.now(UTC), target="main")

    async def diff(*given: object) -> None:
        asked.append(given)

    monkeypatch.setattr(logs._branches, "one", one)
    monkeypatch.setattr(logs._branches, "diff", diff)
    for at in (4, None):
        await logs.changes(OTHER, at)
    assert asked == [(OTHER, 4, 4), (OTHER, None, None)]


async def test_a_stream_does_not_go_back_when_the_newest_commits_are_gone(
    nats_url: str, subjects: Subjects, js: JetStream, log: None
) -> None:
    """Otherwise, Spark would read commits again as soon as there are newer ones."""
    del log
    reader = StreamReader(_options(nats_url, subjects, table="commits", changeSet="main"), pa.schema([]))
    try:
        start = await to_thread.run_sync(reader.latestOffset, {"sequence": 0}, None)
        await js.purge(subjects.commits_stream, subjects.commits(KEY))
        end = await to_thread.run_sync(reader.latestOffset, start, None)
        assert (start, end, reader.partitions(start, end)) == ({"sequence": 6}, {"sequence": 6}, [])
    finally:
        await to_thread.run_sync(reader.stop)


async def test_commits_that_were_purged_are_missed(
    logs: Logs, js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    await js.delete_message(subjects.commits_stream, 2)
    assert await read(logs, None, 0, 3) == [1, 3]  # a new reader begins with the oldest commit that exists
    assert await read(logs, None, 2, 4) == [3, 4]
    with pytest.raises(TransientError, match=r"commits of shop\.main after log sequence 1 were purged.*failOnDataLoss"):
        await read(logs, None, 1, 4)
    async with Logs.connect(_options(nats_url, subjects, failOnDataLoss="false")) as lenient:
        assert await read(lenient, None, 1, 4) == [3, 4]
