"""The sweeper does not read headers that its own server wrote, unless they may change what it knows."""

import random
from typing import Any, cast

import pytest

from rebaser.runtime import own_commits
from rebaser.runtime.own_commits import OwnCommits
from rebaser.sweeper.debts import DebtTracker
from rebaser_core.streams.subjects import Subjects
from tests.support.header_stream import Header, Stream, use_consumers

pytestmark = pytest.mark.anyio

PLAIN = {"X-Applied": "", "X-Debt": "0"}


class Written:
    """A stream and its sweeper's tracker, in a server that writes to the stream."""

    def __init__(self) -> None:
        self.stream, self.own = Stream(), OwnCommits()
        self.own.begin()
        self.tracker = DebtTracker(cast("Any", self.stream), Subjects(""), self.own)

    def write(self, count: int, headers: dict[str, str] = PLAIN, *, name: str = "ws.a", foreign: bool = False) -> None:
        for _ in range(count):
            self.stream.last += 1
            subject = f"rebaser.commits.{name}"
            self.stream.messages.append(Header(subject, self.stream.last, self.stream.last * 10, headers))
            if not foreign:
                self.own.add(self.stream.last, subject, headers)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    use_consumers(monkeypatch, random.Random(1))
    return Written()


@pytest.mark.parametrize("was_empty", [True, False])
async def test_only_the_newest_of_a_servers_own_commits_is_read(written: Written, was_empty: bool) -> None:
    starts: list[int | str] = []
    if not was_empty:
        written.write(1, foreign=True)
        starts = ["last_per_subject"]
    await written.tracker.read()
    written.write(500)
    assert await written.tracker.read_ahead(100)
    assert written.stream.starts == starts
    written.write(500)
    assert await written.tracker.read() == set()
    last = written.stream.last
    assert written.stream.starts == [*starts, last]
    assert (written.tracker.newest_ns, len(written.own._subjects)) == (last * 10, 0)
    assert not await written.tracker.read_ahead(1)


@pytest.mark.parametrize("headers", [PLAIN | {"X-Debt": "1"}, PLAIN | {"X-Unknown-Functions": '["sum"]'}, None])
async def test_from_a_commit_that_changes_something_or_is_foreign_on_all_are_read(
    written: Written, headers: dict[str, str] | None
) -> None:
    await written.tracker.read()
    written.write(500)
    written.write(1, headers or PLAIN, name="ws.b", foreign=headers is None)
    written.write(99, name="ws.c")
    assert await written.tracker.read_ahead(100)
    assert written.stream.starts == [501]
    assert await written.tracker.read() == (set() if headers is None else {"ws.b"})
    assert len(written.own._subjects) == 0


async def test_a_few_commits_behind_a_foreign_one_wait_for_the_next_read(written: Written) -> None:
    await written.tracker.read()
    written.write(500)
    written.write(1, PLAIN | {"X-Debt": "1"})
    written.write(50)
    assert await written.tracker.read_ahead(100)
    assert written.stream.starts == []
    assert not await written.tracker.read_ahead(100)
    assert await written.tracker.read() == set()
    assert written.stream.starts == [501]


async def test_an_own_commit_of_a_change_set_that_owes_something_is_read(written: Written) -> None:
    await written.tracker.read()
    written.write(2, PLAIN | {"X-Debt": "1"}, foreign=True)
    assert await written.tracker.read() == {"ws.a"}
    written.write(2)
    assert await written.tracker.read() == set()
    assert written.stream.starts == [1, 3]


async def test_own_commits_of_a_lost_stream_are_forgotten(written: Written) -> None:
    await written.tracker.read()
    written.write(5)
    await written.tracker.read()
    written.write(5)
    written.stream.messages, written.stream.last = written.stream.messages[:6], 6  # restored
    written.write(1, PLAIN | {"X-Debt": "1"}, name="ws.b", foreign=True)
    written.write(1, foreign=True)
    assert await written.tracker.read() == {"ws.b"}
    written.stream.created, written.stream.last, written.stream.messages = "another", 0, []
    written.write(7)
    assert await written.tracker.read() == set()
    assert (len(written.own._subjects), written.stream.starts[-1]) == (0, "last_per_subject")


async def test_a_commit_that_is_answered_while_the_stream_is_asked_about_is_no_sign_of_loss(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to an append may arrive before the answer to a question about the stream that NATS answered first."""
    await written.tracker.read()
    written.write(500)
    ask = written.stream.stream_info

    async def ask_and_write(name: str) -> Any:
        info = await ask(name)
        written.write(3)
        return info

    monkeypatch.setattr(written.stream, "stream_info", ask_and_write)
    assert await written.tracker.read_ahead(100)
    assert (written.stream.starts, written.tracker._read_up_to) == ([], 499)
    assert len(written.own._subjects) == 4


async def test_what_replaces_a_lost_commit_is_read(written: Written) -> None:
    await written.tracker.read()
    written.write(5)
    written.stream.messages, written.stream.last = written.stream.messages[:2], 2  # NATS lost the others
    written.write(1, PLAIN | {"X-Debt": "1"}, name="ws.b")
    written.write(9)
    assert await written.tracker.read() == {"ws.b"}


async def test_only_a_server_that_sweeps_remembers_its_commits_and_only_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = OwnCommits()
    own.add(1, "rebaser.commits.ws.a", PLAIN)
    assert len(own._subjects) == 0
    own.begin()
    for sequence in (2, 4, 3):
        own.add(sequence, "rebaser.commits.ws.a", PLAIN)
    assert (own.subject(1), own.subject(3), own.newest) == (None, "rebaser.commits.ws.a", 4)
    own.forget_up_to(2)
    assert (own.subject(2), len(own._subjects)) == (None, 2)
    own.forget_up_to(4)
    assert len(own._subjects) == 0
    monkeypatch.setattr(own_commits, "MAX_COMMITS", 3)
    for sequence in range(5, 9):
        own.add(sequence, "rebaser.commits.ws.a", PLAIN)
    assert (own.subject(7), own.subject(8), len(own._subjects)) == (None, "rebaser.commits.ws.a", 1)
    own.end()
    own.add(9, "rebaser.commits.ws.a", PLAIN)
    assert (len(own._subjects), own.newest) == (0, 0)
