"""One round of progress acks: for which tasks it sends them, and how it measures the memory of the owned states."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.lifecycle import Phase
from rebaser.keepalive import MEASURE_EVERY, SLICE, keep_tasks_alive

pytestmark = pytest.mark.anyio


class Measured:
    """An owner whose state has grown by one byte whenever it is measured."""

    def __init__(self, name: str, *, lost: bool = False, phase: Phase = Phase.ACTIVE) -> None:
        self.lease = SimpleNamespace(lost=lost, task=SimpleNamespace(message=name))
        self.lifecycle = SimpleNamespace(phase=phase)
        self.state_bytes = 0

    def measure(self) -> None:
        self.state_bytes += 1


async def a_round(owners: list[Measured], number: int, *held: str) -> tuple[int, list[str]]:
    """Return the memory that the round reports, and the messages that it acknowledges."""
    sent: list[str] = []

    async def progress_all(messages: list[str]) -> None:
        sent.extend(messages)

    tasks = [SimpleNamespace(message=name) for name in held]
    js = SimpleNamespace(progress_all=progress_all)
    return await keep_tasks_alive(cast("Any", js), cast("Any", owners), cast("Any", tasks), number), sent


async def test_every_state_is_measured_once_in_so_many_rounds() -> None:
    owners = [Measured(str(number)) for number in range(2 * SLICE + 3)]
    for number in range(MEASURE_EVERY):
        reported, sent = await a_round(owners, 7 + number)
        assert reported == sum(owner.state_bytes for owner in owners)
        assert sorted(sent) == sorted(owner.lease.task.message for owner in owners)
    assert {owner.state_bytes for owner in owners} == {1}


async def test_a_task_that_was_lost_or_given_back_gets_no_progress_ack() -> None:
    owners = [Measured("lost", lost=True), Measured("done", phase=Phase.DONE), Measured("kept")]
    assert (await a_round(owners, 0, "held"))[1] == ["held", "kept"]
