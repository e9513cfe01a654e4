"""The streams and consumers as data. What is written here is what a server makes sure of when it starts."""

from dataclasses import dataclass
from typing import Any, Literal

from rebaser_core.errors import ConfigError
from rebaser_core.subjects import Subjects

NANOS = 1_000_000_000
TASKS_CONSUMER = "rebaser-tasks"
Durability = Literal["memory", "fast", "safe"]
SAFE_COPIES = 3  # a majority of them outlives any one
TASKS_GROUP = "servers"
SWEEP_CONSUMER = "rebaser-sweep"
SWEEP_GROUP = "sweeper"
MIN_SWEEP_LEASE = 2.0  # seconds; a sweeper that is silent for longer is replaced


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """What an operator may choose. Times are seconds, sizes bytes; -1 is no limit.

    `durability` and `replicas` (copies of each stream): None makes new streams on disk, with one copy, and leaves those
    that are there as they are. `ack_sample` is the share of acks (percent) that the server tells about.
    """

    durability: Durability | None = None
    replicas: int | None = None
    max_requests_per_change_set: int = 100_000
    requests_max_bytes: int = -1
    requests_max_msgs: int = -1
    requests_max_msg_size: int = -1
    commits_max_bytes: int = -1
    ack_sample: int = 0
    duplicate_window: float = 120.0
    dlq_max_age: float = 30 * 24 * 3600.0
    ack_wait: float = 6.0
    sweep_interval: float = 10.0
    max_consumers: int = 1_000_000


def storage(options: TopologyOptions, *, clustered: bool) -> dict[str, Any]:
    """The part of a stream's configuration that durability decides.

    Raises `ConfigError` for fewer copies than `safe` needs. One NATS server alone cannot hold several: it is safe if it
    syncs every write, which is a setting of its own.
    """
    durability, copies = options.durability, options.replicas
    config: dict[str, Any] = {}
    if durability is not None:
        config["storage"] = "memory" if durability == "memory" else "file"
        needed = SAFE_COPIES if durability == "safe" and clustered else 1
        copies = needed if copies is None else copies
        if copies < needed:
            raise ConfigError(f"durability safe needs {needed} copies in a cluster, and replicas is {copies}")
    return config if copies is None else {**config, "num_replicas": copies}


def streams(subjects: Subjects, options: TopologyOptions, *, clustered: bool = False) -> list[dict[str, Any]]:
    """JetStream `StreamConfig` objects (JSON API, docs.nats.io) of the four streams and the blob bucket's stream.

    `clustered`: NATS is a cluster, so that a stream may have copies.
    """
    root = subjects.root
    base = storage(options, clustered=clustered) | {
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "duplicate_window": int(options.duplicate_window * NANOS),
        # 2.15 counts an unset limit as 1000, and every owned change set is a consumer.
        "max_consumers": options.max_consumers,
        "allow_direct": False,
    }
    return [
        base
        | {
            "name": subjects.requests_stream,
            "subjects": [f"{root}.requests.*.*"],
            "retention": "limits",
            "max_msgs_per_subject": options.max_requests_per_change_set,
            "discard_new_per_subject": True,
            "max_bytes": options.requests_max_bytes,
            "max_msgs": options.requests_max_msgs,
            "max_msg_size": options.requests_max_msg_size,
        },
        base
        | {
            "name": subjects.tasks_stream,
            "subjects": [f"{root}.tasks.*.*.process", subjects.sweep],
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
        },
        base
        | {
            "name": subjects.commits_stream,
            "subjects": [f"{root}.commits.*.*"],
            "retention": "limits",
            "max_bytes": options.commits_max_bytes,
        },
        base
        | {
            "name": subjects.dlq_stream,
            "subjects": [f"{root}.dlq.*.*"],
            "retention": "limits",
            "max_age": int(options.dlq_max_age * NANOS),
        },
        base
        | {
            # The layout of a NATS object store (ADR-20), so that its tools can look inside.
            "name": f"OBJ_{subjects.blobs_bucket}",
            "subjects": [f"$O.{subjects.blobs_bucket}.C.>", f"$O.{subjects.blobs_bucket}.M.>"],
            "retention": "limits",
            "allow_rollup_hdrs": True,
        },
    ]


def tasks_consumer(subjects: Subjects, options: TopologyOptions) -> dict[str, Any]:
    """The one durable pull consumer of the fleet. Its policy lets a server take tasks only when others are behind.

    No `max_deliver`: an exhausted work-queue message stays for ever and blocks its change set.
    """
    return _durable(TASKS_CONSUMER, f"{subjects.root}.tasks.*.*.process", options.ack_wait) | {
        "max_waiting": 65_536,
        "priority_policy": "overflow",
        "priority_groups": [TASKS_GROUP],
        "sample_freq": str(options.ack_sample) if options.ack_sample else "",
    }


def sweep_consumer(subjects: Subjects, options: TopologyOptions) -> dict[str, Any]:
    """Where all servers wait for the one sweep message, which goes to the one that is pinned."""
    return _durable(SWEEP_CONSUMER, subjects.sweep, max(options.sweep_interval, MIN_SWEEP_LEASE)) | {
        "priority_policy": "pinned_client",
        "priority_groups": [SWEEP_GROUP],
        "priority_timeout": int(max(options.sweep_interval, MIN_SWEEP_LEASE) * NANOS),
    }


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
