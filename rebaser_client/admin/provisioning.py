"""Creates, updates and checks the streams and the durable consumers that `rebaser_core.streams.topology` describes."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.ensure import difference_texts, differences
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from rebaser_core.streams import topology
from rebaser_core.streams.subjects import Subjects


@dataclass(frozen=True, slots=True)
class Part:
    """A stream, or a durable consumer of `stream`, and how its configuration differs from the wanted configuration.

    `consumer` is empty for a stream. `differences` has one text for each field that differs. If `exists` is false, the
    stream or consumer is missing, and `differences` is empty.
    """

    stream: str
    consumer: str
    exists: bool
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"consumer {self.consumer} of {self.stream}" if self.consumer else f"stream {self.stream}"


async def examine_topology(js: JetStream, subjects: Subjects, options: topology.TopologyOptions) -> list[Part]:
    """Compare all streams and durable consumers with the configuration in `options`, without changing them."""

    async def part(stream: str, consumer: str, info: Awaitable[Any], wanted: Mapping[str, Any]) -> Part:
        try:
            current = (await info).config
        except ApiError as error:
            if error.err_code not in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
                raise
            return Part(stream, consumer, exists=False)
        return Part(stream, consumer, exists=True, differences=tuple(difference_texts(differences(current, wanted))))

    return [
        await part(config["name"], "", js.stream_info(config["name"]), config)
        for config in topology.streams(subjects, options, clustered=js.connection.clustered)
    ] + [
        await part(stream, config["name"], js.consumer_info(stream, config["name"]), config)
        for stream, config in topology.consumers(subjects, options)
    ]


async def ensure_topology(
    js: JetStream,
    subjects: Subjects,
    options: topology.TopologyOptions,
    lost: Mapping[str, int] | None = None,
) -> None:
    """Create missing streams and consumers, and update existing ones.

    `lost` maps the name of each stream that disappeared to the sequence of the newest message that was seen in it. The
    new stream starts after that sequence. Raise `ConfigError` if an existing stream or consumer cannot be updated as
    needed.
    """
    lost = lost or {}
    initial_limits = topology.initial_limits(subjects)
    for config in topology.streams(subjects, options, clustered=js.connection.clustered):
        name = config["name"]
        initial = initial_limits.get(name, {})
        if name in lost:
            initial = initial | {"first_seq": topology.first_sequence_after(lost[name])}
        await js.ensure_stream(config, initial)
    for stream, consumer in topology.consumers(subjects, options):
        await js.ensure_consumer(stream, consumer)


async def retire_old_sweep(js: JetStream, subjects: Subjects) -> bool:
    """Remove the consumer and the message with which earlier releases elected the sweeper.

    Return False, and remove nothing, if a server of an earlier release still uses the consumer. That server then sweeps
    in addition to the elected server, which does no harm.
    """
    try:
        info = await js.consumer_info(subjects.tasks_stream, topology.SWEEP_CONSUMER)
    except ApiError as error:
        if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise
        return True
    if info.num_waiting:
        return False
    await js.delete_consumer(subjects.tasks_stream, topology.SWEEP_CONSUMER)
    await js.purge(subjects.tasks_stream, subjects.sweep_before)
    return True
