"""A release whose ack may have succeeded without an answer, and a task that was redelivered meanwhile."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.lease import Lease, Task
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


async def test_an_ack_without_an_answer_counts_as_one_when_the_lease_is_lost() -> None:
    """The ack may have succeeded. Then the task is removed soon, and a task that is published before that is
    refused."""
    stands, acks = [True, True, False], 0

    class Server:
        async def ack_sync(self, _: object) -> None:
            nonlocal acks
            acks += 1
            lease.lost = True
            raise TransientError("no answer")

        async def last(self, *_: object) -> object:
            return SimpleNamespace(sequence=7) if stands.pop(0) else None

    lease = Lease(Task(KEY, cast("Any", SimpleNamespace(stream_sequence=7)), cast("Any", Server())), Subjects(""))
    await lease.release()
    assert (stands, acks) == ([], 1)
