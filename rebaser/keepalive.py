"""Sends progress acks, so that NATS redelivers no task of this server.

Invariant: a task that its owner has lost, or has given back, gets no progress ack.
"""

from collections.abc import Sequence

import anyio.lowlevel

from rebaser.change_set.lease import Task
from rebaser.change_set.lifecycle import Phase
from rebaser.change_set.owner import Owner
from rebaser_client.jetstream import JetStream

SLICE = 1000  # tasks that are reported to be in progress in one iteration of the event loop
# Measuring all states would take as long as the rest of a round, so each round measures one state in five. A state is
# also measured when it is loaded.
MEASURE_EVERY = 5


async def keep_tasks_alive(js: JetStream, owners: Sequence[Owner], tasks: Sequence[Task], number: int) -> int:
    """Send a progress ack for the tasks of `owners` and for `tasks`. Return the memory of the owned states in bytes.

    `number` counts the rounds. Raise the errors of `JetStream.progress_all`.
    """
    state_bytes = 0
    await js.progress_all([task.message for task in tasks])
    for start in range(0, len(owners), SLICE):
        part = owners[start : start + SLICE]
        for owner in part[number % MEASURE_EVERY :: MEASURE_EVERY]:
            owner.measure()
        state_bytes += sum([owner.state_bytes for owner in part])
        await js.progress_all([owner.lease.task.message for owner in part if _holds_task(owner)])
        await anyio.lowlevel.checkpoint()
    return state_bytes


def _holds_task(owner: Owner) -> bool:
    return not owner.lease.lost and owner.lifecycle.phase is not Phase.DONE
