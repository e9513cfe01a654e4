"""Describes the streams and consumers of an installation as data. A server creates or updates them when it starts."""

from dataclasses import dataclass
from typing import Any, Literal

from rebaser_core.errors import ConfigError
from rebaser_core.streams.subjects import Subjects

NANOS = 1_000_000_000
TASKS_CONSUMER = "rebaser-tasks"
Durability = Literal["memory", "fast", "safe"]
MAX_REQUESTS_PER_CHANGE_SET = 100_000  # the initial limit of a new request stream
SEQUENCE_GAP = 1_000_000  # larger than the number of messages that arrive between two observations of the last sequence
SAFE_COPIES = 3  # if one of three copies is lost, a majority remains
TASKS_GROUP = "servers"
SWEEP_CONSUMER = "rebaser-sweep"
SWEEP_GROUP = "sweeper"
MAX_SWEEP_BYTES = 64 * 1024  # the initial size limit of the stream that contains the sweep message
MIN_SWEEP_LEASE = 2.0  # seconds; the shortest allowed time after which a silent sweeper is replaced


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The operator's settings for streams and consumers. Times are in seconds, and sizes in bytes.

    A limit of -1 means that there is no limit, and an age of 0 means that nothing expires. If a field is None, an
    existing stream stays unchanged, and a new stream is stored on disk, in one copy and without any limit except
    `MAX_REQUESTS_PER_CHANGE_SET`. `replicas` is the number of copies of each stream. `ack_sample` is the percentage of
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
    """Return the fields of a stream's configuration that depend on `options.durability`.

    Raise `ConfigError` if `options.replicas` is too low for the durability `safe` in a cluster. A single NATS server
    cannot store several copies. To make a single server safe, the operator has to configure it to sync every write.
    """
    durability, copies = options.durability, options.replicas
    config: dict[str, Any] = {}
    if durability is not None:
        config["storage"] = "memory" if durability == "memory" else "file"
        needed = SAFE_COPIES if durability == "safe" and clustered else 1
        copies = needed if copies is None else copies
        if copies < needed:
            raise ConfigError(
                f"the durability 'safe' needs {needed} copies in a cluster, but the number of replicas is {copies}: "
                "raise the number, or choose another durability"
            )
    return config if copies is None else {**config, "num_replicas": copies}


def streams(subjects: Subjects, options: TopologyOptions, *, clustered: bool = False) -> list[dict[str, Any]]:
    """Return the configurations of all streams, including the stream of the blob bucket.

    Each configuration is a `StreamConfig` object of the JetStream JSON API (docs.nats.io). It contains the fields on
    which Rebaser's guarantees depend, and the fields that the operator has set. Other fields of an existing stream stay
    unchanged. `clustered` says whether NATS runs as a cluster, in which a stream can have several copies.
    """
    root = subjects.root
    base = storage(options, clustered=clustered) | {
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        # NATS 2.15 has a default limit of 1000 consumers, which is too low, because each owned change set has a
        # consumer.
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
            # This is the layout of a NATS object store (ADR-20), so NATS tools can read the blobs.
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
    """Return the configuration fields that are set only when a stream is created, keyed by stream name. Later, only the
    operator changes them."""
    return {
        subjects.requests_stream: {"max_msgs_per_subject": MAX_REQUESTS_PER_CHANGE_SET},
        # This stream contains a single empty message, but still needs a limit. Its subject has no wildcard, so any user
        # who may create consumers of another stream can make NATS deliver messages to this subject and thereby fill
        # this stream.
        subjects.sweep_stream: {"max_bytes": MAX_SWEEP_BYTES},
    }


def first_sequence_after(last: int) -> int:
    """Return the first sequence for a new stream that replaces a lost stream.

    `last` is the sequence of the newest known message of the lost stream. The result is so much higher that no ack,
    deletion or expected sequence meant for the lost stream can match a message of the new stream.
    """
    return (last // SEQUENCE_GAP + 2) * SEQUENCE_GAP + 1


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _nanos(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * NANOS)


def tasks_consumer(subjects: Subjects, options: TopologyOptions) -> dict[str, Any]:
    """Return the configuration of the durable pull consumer from which all servers get their tasks.

    With the `overflow` policy, spare servers get tasks only while other servers are behind. There is no `max_deliver`,
    because a task that exhausts it would stay in the stream and block its change set forever.
    """
    return _durable(TASKS_CONSUMER, f"{subjects.root}.tasks.*.*.process", options.ack_wait) | {
        "max_waiting": 65_536,
        "priority_policy": "overflow",
        "priority_groups": [TASKS_GROUP],
        **_given(sample_freq=None if options.ack_sample is None else str(options.ack_sample or "")),
    }


def sweep_consumer(subjects: Subjects, options: TopologyOptions) -> dict[str, Any]:
    """Return the configuration of the durable pull consumer for the sweep message.

    All servers pull from it, but NATS delivers the only message to a single pinned client.
    """
    return _durable(SWEEP_CONSUMER, subjects.sweep, max(options.sweep_interval, MIN_SWEEP_LEASE)) | {
        "priority_policy": "pinned_client",
        "priority_groups": [SWEEP_GROUP],
        "priority_timeout": int(max(options.sweep_interval, MIN_SWEEP_LEASE) * NANOS),
    }


def consumers(subjects: Subjects, options: TopologyOptions) -> list[tuple[str, dict[str, Any]]]:
    """Return all durable consumers, as pairs of the stream's name and the consumer's configuration."""
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
