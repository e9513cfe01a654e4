"""Creates and updates the streams and the durable consumers that `rebaser_core.streams.topology` describes."""

from collections.abc import Mapping

from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from rebaser_core.streams import topology
from rebaser_core.streams.subjects import Subjects


async def ensure_topology(
    js: JetStream,
    subjects: Subjects,
    options: topology.TopologyOptions,
    lost: Mapping[str, int] | None = None,
) -> None:
    """Create missing streams and consumers, and update existing ones.

    `lost` maps the name of each stream that disappeared to the sequence of the newest message that was seen in it; the
    new stream starts after it. Raises `ConfigError` if an existing stream or consumer cannot be updated as needed.
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

    Returns False, and removes nothing, if a server of an earlier release still waits on the consumer. That server
    then sweeps beside the new sweeper, which does no harm.
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
