"""Makes sure that the streams and the durable consumers are there, as `rebaser_core.topology` describes them."""

from collections.abc import Mapping

from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from rebaser_core import topology
from rebaser_core.subjects import Subjects


async def ensure_topology(
    js: JetStream,
    subjects: Subjects,
    options: topology.TopologyOptions,
    lost: Mapping[str, int] | None = None,
) -> None:
    """Create what is missing, update what may be; raises `ConfigError` if something there cannot be made to fit.

    `lost`: by stream that was there before, the sequence of the newest message that was seen in it.
    """
    beginnings = topology.beginnings(subjects)
    for config in topology.streams(subjects, options, clustered=js.connection.clustered):
        name = config["name"]
        beginning = beginnings.get(name, {})
        if name in (lost or {}):
            beginning = beginning | {"first_seq": topology.first_sequence_after((lost or {})[name])}
        await js.ensure_stream(config, beginning)
    for stream, consumer in topology.consumers(subjects, options):
        await js.ensure_consumer(stream, consumer)


async def retire_old_sweep(js: JetStream, subjects: Subjects) -> bool:
    """Remove what releases before kept in the tasks stream to choose the sweeper; False if one of them still waits.

    Those that are left sweep beside the new ones, which does no harm.
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
