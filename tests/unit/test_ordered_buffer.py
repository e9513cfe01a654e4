"""The buffer of an ordered consumer is bounded in messages and in bytes."""

import pytest

from rebaser_client.jetstream.messages import Message
from rebaser_client.jetstream.ordered.buffer import MessageBuffer


def message(size: int) -> Message:
    return Message("s", "$JS.ACK.stream.consumer.1.1.1.0.0", b"x" * size, {})


def filled(sizes: list[int], max_count: int = 4, max_bytes: int = 100) -> MessageBuffer:
    buffer = MessageBuffer(max_count, max_bytes)
    for size in sizes:
        buffer.add(message(size))
    return buffer


@pytest.mark.parametrize(
    ("sizes", "next_", "fits"),
    [
        ([], 1000, True),  # otherwise, this message would never be delivered
        ([1], 99, True),
        ([1], 100, False),
        ([1, 1, 1], 1, True),
        ([1, 1, 1, 1], 1, False),
    ],
)
def test_what_fits(sizes: list[int], next_: int, fits: bool) -> None:
    assert filled(sizes).fits(message(next_)) is fits


@pytest.mark.parametrize(
    ("sizes", "empty"),
    [([], True), ([25, 25], True), ([25, 26], False), ([51], False), ([1, 1, 1], False)],
)
def test_it_is_half_empty_in_messages_and_in_bytes(sizes: list[int], empty: bool) -> None:
    assert filled(sizes).half_empty() is empty


@pytest.mark.parametrize(
    ("count", "room", "taken"), [(10, 1000, [30, 20, 10]), (2, 1000, [30, 20]), (10, 50, [30, 20]), (10, 1, [30])]
)
def test_as_much_is_taken_as_is_asked_for_and_one_at_least(count: int, room: int, taken: list[int]) -> None:
    buffer = filled([30, 20, 10])
    assert [len(one.data) for one in buffer.take(count, room)] == taken
    assert len(buffer.messages) == 3 - len(taken)
    assert buffer.fits(message(40 + sum(taken)))
    assert len(buffer.messages) == 0 or not buffer.fits(message(41 + sum(taken)))


@pytest.mark.parametrize("sizes", [[1], [1, 2], [1, 2, 3]])
def test_messages_are_removed_one_by_one_and_more_may_be_added(sizes: list[int]) -> None:
    buffer = filled(sizes)
    for size in sizes:
        assert len(buffer.pop().data) == size
    assert (len(buffer.messages), buffer.half_empty()) == (0, True)
    buffer.add(message(4))
    assert len(buffer.pop().data) == 4
