"""A lease that was lost: acks name a stream sequence, so they would affect the delivery that another owner holds."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.lease import Lease, ReturnedTasks, Task
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio


class Said(Exception):  # noqa: N818 - what happened
    pass


class Connected:
    """A connection that records each message about the task."""

    def __getattr__(self, name: str) -> object:
        raise Said(name)


def leased(*, lost: bool) -> Lease:
    lease = Lease(Task(ChangeSetKey("ws", "cs"), cast("Any", None), cast("Any", Connected())), Subjects(""))
    lease.lost = lost
    return lease


async def test_once_a_lease_is_lost_nothing_is_said_about_its_task() -> None:
    lease = leased(lost=True)
    await lease.release()
    await lease.give_back(0.0)


async def test_what_was_acked_when_the_lease_was_lost_is_waited_for_and_not_acked_again() -> None:
    """A task that is published before the old one is gone is refused, and then there is none."""
    task = SimpleNamespace(stream_sequence=7)
    stands, acks = [True, True, False], 0

    class Server:
        async def ack_sync(self, _: object) -> None:
            nonlocal acks
            acks += 1
            lease.lost = True

        async def last(self, *_: object) -> object:
            return SimpleNamespace(sequence=7) if stands.pop(0) else None

    lease = Lease(Task(ChangeSetKey("ws", "cs"), cast("Any", task), cast("Any", Server())), Subjects(""))
    await lease.release()
    assert (stands, acks) == ([], 1)


async def test_another_task_in_its_place_is_not_waited_for() -> None:
    acks = 0

    class Server:
        async def ack_sync(self, _: object) -> None:
            nonlocal acks
            acks += 1

        async def last(self, *_: object) -> object:
            return SimpleNamespace(sequence=8)

    task = SimpleNamespace(stream_sequence=7)
    await Lease(Task(ChangeSetKey("ws", "cs"), cast("Any", task), cast("Any", Server())), Subjects("")).release()
    assert acks == 1


@pytest.mark.parametrize("fails", ["ack_sync", "last"])
async def test_an_ack_is_repeated_until_the_task_is_seen_to_be_gone(fails: str) -> None:
    """Otherwise, the task for a later request is refused because of this one, and no server is woken before the next
    sweep."""
    said: list[str] = []

    class Server:
        async def ack_sync(self, _: object) -> None:
            self._say("ack_sync")

        async def last(self, *_: object) -> None:
            self._say("last")

        def _say(self, what: str) -> None:
            said.append(what)
            if what == fails and said.count(what) == 1:
                raise TransientError("NATS is away")

    task = SimpleNamespace(stream_sequence=7)
    await Lease(Task(ChangeSetKey("ws", "cs"), cast("Any", task), cast("Any", Server())), Subjects("")).release()
    assert said[-2:] == ["ack_sync", "last"]
    assert said.count(fails) == 2


async def test_while_it_is_held_it_is_acked_or_given_back() -> None:
    with pytest.raises(Said, match="ack_sync"):
        await leased(lost=False).release()
    with pytest.raises(Said, match="nak"):
        await leased(lost=False).give_back(0.0)


async def test_a_word_that_nats_does_not_get_is_only_logged() -> None:
    """The task is redelivered, or the sweeper finds the change set. An error would end the server."""
    said: list[str] = []

    class Server:
        async def nak(self, *_: object) -> None:
            said.append("nak")
            raise TransientError("NATS is away")

        async def publish(self, *_: object, **__: object) -> None:
            said.append("publish")
            raise TransientError("NATS is away")

    lease = Lease(Task(ChangeSetKey("ws", "cs"), cast("Any", None), cast("Any", Server())), Subjects(""))
    await lease.give_back(0.0)
    await lease.publish_again()
    assert said == ["nak", "publish"]


def test_returned_tasks_count_until_their_delays_are_over() -> None:
    now = 100.0
    returned = ReturnedTasks(lambda: now)
    for delay in (5.0, 0.0, 2.0):
        returned.add(delay)
    assert returned.count() == 2
    now = 102.0
    assert returned.count() == 1
    now = 105.0
    assert returned.count() == 0
