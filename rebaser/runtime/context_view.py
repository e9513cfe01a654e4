"""Takes snapshots of the shared parts of a server, for its status and metrics.

Invariant: each snapshot shows the present state of the parts, and sends no request to NATS.
"""

from rebaser.runtime.context import Context
from rebaser.snapshot import Snapshot, Stage
from rebaser_client.jetstream.api_calls import call_slot


def view_context(context: Context, stage: Stage) -> Snapshot:
    """Return a snapshot of a server that is in the stage `stage`. Fields that describe its owners have their
    defaults."""
    settings, connection, streams = context.settings, context.connection, context.stream_watch
    away, rtt = connection.away_and_rtt()
    waiting, in_hand = streams.tasks
    return Snapshot(
        server_id=settings.server_id,
        stage=stage,
        ack_wait=settings.ack_wait,
        ping_interval=settings.ping_interval,
        nats_away=away,
        nats_problem=connection.problem,
        nats_rtt=rtt,
        nats_version=connection.server_version,
        nats_calls=call_slot().taken,
        clock_ahead=streams.clock_ahead,
        missing=streams.problem,
        trouble=context.health.current(context.now()),
        losses=tuple(streams.losses),
        spark=context.engine.state,
        durability=settings.durability,
        streams=streams.usage(),
        oldest_request_age=streams.oldest_request_age(),
        tasks_waiting=waiting,
        tasks_in_hand=in_hand,
        deletes_queued=context.deleter.queued,
        spark_load=context.engine.load,
    )
