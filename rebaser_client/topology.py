"""Makes sure that the streams and the durable consumers are there, as `rebaser_core.topology` describes them."""

from rebaser_client.jetstream import JetStream
from rebaser_core import topology
from rebaser_core.subjects import Subjects


async def ensure_topology(js: JetStream, subjects: Subjects, options: topology.TopologyOptions) -> None:
    """Create what is missing, update what may be; raises `ConfigError` if something there cannot be made to fit."""
    for config in topology.streams(subjects, options, clustered=js.connection.clustered):
        await js.ensure_stream(config)
    await js.ensure_consumer(subjects.tasks_stream, topology.tasks_consumer(subjects, options))
    await js.ensure_consumer(subjects.tasks_stream, topology.sweep_consumer(subjects, options))
