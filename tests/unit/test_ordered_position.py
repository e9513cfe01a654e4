"""Tests where the next consumer begins: compared with a stream in memory whose deliveries are lost at random."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.jetstream.messages import Message
from rebaser_client.jetstream.ordered.position import Position, rfc3339
from rebaser_core.errors import ConfigError

Stored = tuple[int, str]
LATER = datetime(2200, 1, 1, tzinfo=UTC)


class Stream:
    """The messages that a server stores, as (sequence, subject). None has the time `LATER` or a later one."""

    def __init__(self, subjects: str) -> None:
        self.messages: list[Stored] = []
        self.add(subjects)

    def add(self, subjects: str) -> None:
        for subject in subjects:
            self.messages.append((len(self.messages) + 1, subject))

    def newest(self) -> list[Stored]:
        return sorted({subject: (sequence, subject) for sequence, subject in self.messages}.values())

    def consumer(self, policy: dict[str, Any]) -> Callable[[], list[Stored]]:
        """Return a function that returns what a consumer created now has delivered by the time of its call."""
        created_consumer = len(self.messages)
        kind = policy["deliver_policy"]
        if kind == "last_per_subject":
            newest = self.newest()
            return lambda: [*newest, *self.messages[created_consumer:]]
        first = {
            "all": 0,
            "new": created_consumer,
            "last": max(created_consumer - 1, 0),
            "by_start_time": created_consumer,
            "by_start_sequence": policy.get("opt_start_seq", 0) - 1,
        }[kind]
        return lambda: self.messages[first:]


def read(position: Position, stream: Stream, runs: list[tuple[str, int]]) -> list[int]:
    """Return the sequences that are read through several consumers. Each delivers a number of messages, and more are
    stored after its creation."""
    taken: list[int] = []
    if position.wants_end:
        position.snapshot = len(stream.messages)
    for number, (added, count) in enumerate([*runs, ("", -1), ("", -1)]):
        again = number > 0
        delivered = stream.consumer(position.policy())
        first = delivered()
        start = first[0][0] - 1 if first else len(stream.messages)
        info = ConsumerInfo.of({"num_pending": len(first), "delivered": {"stream_seq": start}})
        position.created_consumer(info)
        stream.add(added)
        messages = delivered()
        for index, (sequence, subject) in enumerate(messages[: None if count < 0 else count]):
            message = Message(subject, f"$JS.ACK.s.c.1.{sequence}.{index + 1}.0.{len(messages) - index - 1}", b"", None)
            if sequence <= position.last:
                continue
            if position.snapshot is not None and not position.accepts(message, position.snapshot, again=again):
                break
            taken.append(sequence)
            position.last = sequence
    return taken


texts = st.text("abc", max_size=6)
runs = st.lists(st.tuples(texts, st.integers(0, 8)), max_size=6)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("all", lambda end: 1),
        ("last", lambda end: max(end, 1)),
        ("new", lambda end: end + 1),
        (LATER, lambda end: end + 1),
        (3, lambda end: 3),
    ],
)
@settings(deadline=None)
@given(before=texts, runs=runs)
def test_interruptions_change_nothing(start: Any, first: Callable[[int], int], before: str, runs: Any) -> None:
    stream = Stream(before)
    taken = read(Position(start), stream, runs)
    assert taken == [sequence for sequence, _ in stream.messages if sequence >= first(len(before))]


@settings(deadline=None)
@given(before=texts, runs=runs)
def test_last_per_subject_takes_the_newest_there_were_and_all_that_came(before: str, runs: Any) -> None:
    stream = Stream(before)
    newest = {sequence for sequence, _ in stream.newest()}
    taken = read(Position("last_per_subject"), stream, runs)
    old = {sequence for sequence in taken if sequence <= len(before)}
    assert taken == sorted(taken)
    assert len(taken) == len(set(taken))
    assert old <= newest
    assert set(taken) - old == set(range(len(before) + 1, len(stream.messages) + 1))
    superseded = {subject for sequence, subject in stream.messages if sequence > len(before)}
    assert {sequence for sequence in newest if stream.messages[sequence - 1][1] not in superseded} <= old


@pytest.mark.parametrize("start", ["first", datetime(2026, 1, 1), None, 1.5])  # noqa: DTZ001 - that is what is wrong
def test_what_is_no_start_is_refused(start: Any) -> None:
    with pytest.raises(ConfigError):
        Position(start)


def test_last_per_subject_of_nothing_goes_on_with_all_that_comes() -> None:
    position = Position("last_per_subject")
    position.snapshot = 7
    position.created_consumer(ConsumerInfo.of({"num_pending": 0}))
    assert position.policy() == {"deliver_policy": "by_start_sequence", "opt_start_seq": 8}


def test_times_are_written_in_utc_with_nanoseconds() -> None:
    zone = timezone(timedelta(hours=2))
    assert rfc3339(datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=zone)) == "2026-03-04T03:06:07.000089000Z"
    assert rfc3339(datetime(2026, 3, 4, tzinfo=UTC)) == "2026-03-04T00:00:00.000000000Z"
