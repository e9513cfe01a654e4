"""Tasks that were acked, but that NATS did not remove."""

from typing import Any

import anyio
import pytest

from rebaser.runtime.acked_tasks import AckedTasks
from rebaser_client.jetstream import JetStream, PullConsumer
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER, TASKS_GROUP
from tests.conftest import Events

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_an_acked_task_is_acked_again_once_nats_has_had_time_to_remove_it(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    """nats-server fails to remove a message only if its disk is full. Here, tasks without an ack take the place."""
    names = ("a", "b", "c")
    for name in names:
        await publish_task(js, subjects, ChangeSetKey("ws", name))
    async with PullConsumer(js, subjects.tasks_stream, TASKS_CONSUMER, group=TASKS_GROUP) as consumer:
        consumer.add_credit(3)
        with anyio.fail_after(60):
            for _ in names:
                await anext(aiter(consumer))
        tasks = AckedTasks(js, subjects)

        async def left() -> set[str]:
            return set(await js.subject_counts(subjects.tasks_stream, f"{subjects.root}.tasks.>"))

        for first, floor in ((1, 0), (1, 2), (0, 2), (1, 2), (2, 2), (1, 1)):
            await tasks.check(first, floor)
            assert len(await left()) == 3, "NATS may be about to remove it"
        await tasks.check(1, 2)
        assert await left() == {subjects.task(ChangeSetKey("ws", "c"))}
    assert [entry["seq"] for entry in events.named("acked_task_removed")] == [1, 2]


async def test_a_server_that_may_not_read_tasks_goes_on(js: JetStream, subjects: Subjects) -> None:
    class Refusing:
        async def next(self, *_: Any) -> Any:
            return await js.next("NO_SUCH_STREAM", ">", 1)

    tasks = AckedTasks(Refusing(), subjects)  # type: ignore[arg-type]
    for _ in range(3):
        await tasks.check(1, 1)
