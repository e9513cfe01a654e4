"""Computes statistics about task acks from the ack samples that nats-server publishes."""

import statistics
from dataclasses import dataclass

import anyio

from rebaser_client.jetstream import JetStream
from rebaser_client.jetstream.advisories import AckSample, watch_acks
from rebaser_client.nats.messages import as_int
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER


@dataclass(frozen=True, slots=True)
class TaskAcks:
    """Statistics about the tasks that were acked within `seconds` seconds.

    - `percent`: the percentage of acks that NATS samples; 0 if sampling is off. `samples`: the number of samples.
    - `redelivered`: the number of samples whose task was delivered more than once, because a server returned the task
      or did not respond. `most_deliveries`: the highest number of deliveries of one task.
    - `latency_p50`, `latency_max`: the median and the maximum of the seconds from the last progress ack to the final
      ack; None without samples.
    - `ack_wait`: the seconds after which NATS redelivers a task without an ack.

    A server holds a task for as long as it owns the change set, and sends a progress ack every third of the ack wait.
    The latencies therefore normally stay below a third of the ack wait. A latency near the ack wait means that the
    server nearly lost the task to another server.
    """

    seconds: float
    percent: int
    samples: int
    redelivered: int
    most_deliveries: int
    latency_p50: float | None
    latency_max: float | None
    ack_wait: float


async def watch_task_acks(js: JetStream, subjects: Subjects, seconds: float) -> TaskAcks:
    """Collect ack samples for `seconds` seconds, and return statistics about them. If sampling is off, return at
    once."""
    config = (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).config
    percent = as_int(str(config.get("sample_freq", "")).rstrip("%"))
    samples: list[AckSample] = []
    if percent:
        async with watch_acks(js.connection, subjects.tasks_stream, TASKS_CONSUMER) as acks:
            with anyio.move_on_after(seconds):
                async for sample in acks:
                    samples.append(sample)  # noqa: PERF401 - the timeout would cancel a comprehension and lose samples
    latencies = [sample.ack_time_ns / 1e9 for sample in samples]
    return TaskAcks(
        seconds=seconds,
        percent=percent,
        samples=len(samples),
        redelivered=sum(1 for sample in samples if sample.deliveries > 1),
        most_deliveries=max((sample.deliveries for sample in samples), default=0),
        latency_p50=round(statistics.median(latencies), 6) if latencies else None,
        latency_max=round(max(latencies), 6) if latencies else None,
        ack_wait=as_int(config.get("ack_wait")) / 1e9,
    )
