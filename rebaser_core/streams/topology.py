"""The streams and consumers of an installation as data. A server creates or updates them when it starts."""

from dataclasses import dataclass
from typing import Any, Literal

from rebaser_core.errors import ConfigError
from rebaser_core.streams.subjects import Subjects

NANOS = 1_000_000_000
TASKS_CONSUMER = "rebaser-tasks"
Durability = Literal["memory", "fast", "safe"]
MAX_REQUESTS_PER_CHANGE_SET = 100_000  # limit of a new stream of requests
SEQUENCE_GAP = 1_000_000  # more than the number of messages a stream gets between two observations
SAFE_COPIES = 3  # if any one copy is lost, a majority is left
TASKS_GROUP = "servers"
SWEEP_CONSUMER = "rebaser-sweep"
SWEEP_GROUP = "sweeper"
MAX_SWEEP_BYTES = 64 * 1024  # limit of a new stream of the sweep message
MIN_SWEEP_LEASE = 2.0  # seconds; a sweeper that stays silent for longer is replaced


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The operator's choices. Times are in seconds, sizes in bytes. -1 means no limit; an age of 0 means no expiry.

    None leaves an existing stream unchanged. If the stream is new, None stands for storage on disk, with one copy and
    without limits except `MAX_REQUESTS_PER_CHANGE_SET`. `replicas`: copies of each stream. `ack_sample`: percentage of
    acks for which the NATS server publishes an advisory.
    """

    durability: Durability | None = None
    replicas: int | None = None
    max_requests_per_change_set: int | None = None
    requests_max_bytes: int | None = None
    requests_max_msgs: int | None = None
    requests_max_msg_size: int | None = None
    commits_max_bytes: int | None = None
    dlq_max_bytes: int | None = None
    dlq_max_age: float | None = None
    blobs_max_bytes: int | None = None
    duplicate_window: float | None = None
    ack_sample: int | None = None
    ack_wait: float = 6.0
    sweep_interval: float = 10.0
    max_consumers: int = 1_000_000


def storage(options: TopologyOptions, *, clustered: bool) -> dict[str, Any]:
    """Return the fields of a stream's configuration that durability determines.

    Raises `ConfigError` for fewer copies than `safe` needs. A single NATS server cannot hold several copies. It is safe
    if it syncs every write, which is a setting of that server.
    """
    durability, copies = options.durability, options.replicas
    config: dict[str, Any] = {}
    if durability is not None:
        config["storage"] = "memory" if durability == "memory" else "file"
        needed = SAFE_COPIES if durability == "safe" and clustered else 1
        copies = needed if copies is None else copies
        if copies < needed:
            raise ConfigError(f"durability safe needs {needed} copies in a cluster, but replicas is {copies}")
    return config if copies is None else {**config, "num_replicas": copies}


def streams(subjects: Subjects, options: TopologyOptions, *, clustered: bool = False) -> list[dict[str, Any]]:
    """Return the JetStream `StreamConfig` objects (JSON API, docs.nats.io) of all streams, including the stream of the
    blob bucket.

    They contain the fields on which the guarantees of Rebaser depend, and the fields that the operator chose. Other
    fields of an existing stream stay unchanged. If `clustered` is true, NATS is a cluster, so that a stream can have
    several copies.
    """
    root = subjects.root
    base = storage(options, clustered=clustered) | {
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        # NATS 2.15 treats an unset limit as 1000, which is too low: every owned change set has a consumer.
        "max_consumers": options.max_consumers,
        "allow_direct": False,
        **_given(duplicate_window=_nanos(options.duplicate_window)),
    }
    # Dead letters may expire, because no guarantee depends on them.
    dead_letters = {name: value for name, value in base.items() if name != "max_age"}
    if options.dlq_max_age:
        dead_letters["max_age"] = _nanos(options.dlq_max_age)
        # NATS refuses a duplicate window that is longer than the maximum age.
        dead_letters["duplicate_window"] = _nanos(min(options.dlq_max_age, options.duplicate_window or 120.0))
    return [
        base
        | {
            "name": subjects.requests_stream,
            "subjects": [f"{root}.requests.*.*"],
            "discard_new_per_subject": True,
        }
        | _given(
            max_msgs_per_subject=options.max_requests_per_change_set,
            max_bytes=options.requests_max_bytes,
            max_msgs=options.requests_max_msgs,
            max_msg_size=options.requests_max_msg_size,
        ),
        base
        | {
            "name": subjects.tasks_stream,
            "subjects": [f"{root}.tasks.*.*.process"],
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
        },
        base
        | {"name": subjects.commits_stream, "subjects": [f"{root}.commits.*.*"]}
        | _given(max_bytes=options.commits_max_bytes),
        dead_letters
        | {"name": subjects.dlq_stream, "subjects": [f"{root}.dlq.*.*"]}
        | _given(max_bytes=options.dlq_max_bytes, max_age=_nanos(options.dlq_max_age)),
        base
        | {
            # The layout of a NATS object store (ADR-20), so that NATS tools can read it.
            "name": f"OBJ_{subjects.blobs_bucket}",
            "subjects": [f"$O.{subjects.blobs_bucket}.C.>", f"$O.{subjects.blobs_bucket}.M.>"],
            "allow_rollup_hdrs": True,
        }
        | _given(max_bytes=options.blobs_max_bytes),
        base
        | {
            "name": subjects.sweep_stream,
            "subjects": [subjects.sweep],
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
        },
    ]


def initial_limits(subjects: Subjects) -> dict[str, dict[str, Any]]:
    """Return, by stream, the fields with which a new stream is created. After that, only the operator changes them."""
    return {
        subjects.requests_stream: {"max_msgs_per_subject": MAX_REQUESTS_PER_CHANGE_SET},
        # This stream holds one empty message. Because its subject has no wildcard, a user who may create consumers of
        # any other stream can make NATS deliver messages to it.
        subjects.sweep_stream: {"max_bytes": MAX_SWEEP_BYTES},
    }


def first_sequence_after(last: int) -> int:
    """Return the first sequence of a stream that replaces one whose newest known message had the sequence `last`.

    Acks, deletes and expected sequences that were meant for the old stream must not match a message of the new one.
    """
    return (last // SEQUENCE_GAP + 2) * SEQUENCE_GAP + 1


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _nanos(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * NANOS)


def tasks_consumer(subjects: Subjects, options: TopologyOptions) -> dict[str, Any]:
    """Return the durable pull consumer of all servers. The `overflow` policy gives spare servers tasks only while
    others lag.

    No `max_deliver`: a work-queue message that exhausts it would stay in the stream and block its change set forever.
    """
    return _durable(TASKS_CONSUMER, f"{subjects.root}.tasks.*.*.process", options.ack_wait) | {
        "max_waiting": 65_536,
        "priority_policy": "overflow",
        "priority_groups": [TASKS_GROUP],
        **_given(sample_freq=None if options.ack_sample is None else str(options.ack_sample or "")),
    }


def sweep_consumer(subjects: Subjects, options: TopologyOptions) -> dict[str, Any]:
    """Return the consumer from which every server tries to pull the single sweep message; NATS delivers it only to the
    pinned client."""
    return _durable(SWEEP_CONSUMER, subjects.sweep, max(options.sweep_interval, MIN_SWEEP_LEASE)) | {
        "priority_policy": "pinned_client",
        "priority_groups": [SWEEP_GROUP],
        "priority_timeout": int(max(options.sweep_interval, MIN_SWEEP_LEASE) * NANOS),
    }


def consumers(subjects: Subjects, options: TopologyOptions) -> list[tuple[str, dict[str, Any]]]:
    """Return the durable consumers as pairs of stream name and configuration."""
    return [
        (subjects.tasks_stream, tasks_consumer(subjects, options)),
        (subjects.sweep_stream, sweep_consumer(subjects, options)),
    ]


def _durable(name: str, filter_subject: str, ack_wait: float) -> dict[str, Any]:
    return {
        "durable_name": name,
        "name": name,
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * NANOS),
        "deliver_policy": "all",
        "replay_policy": "instant",
        "max_deliver": -1,
        "max_ack_pending": -1,
        "filter_subject": filter_subject,
        "num_replicas": 0,
    }
