"""The state of a server at one moment, as probes, metrics and pings report it. This module contains only data.

Invariant: a state is read when a probe, a scrape or a ping asks for it. No counter is updated as the state changes, so
the report cannot drift.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rebaser_core.messages import DvuProgress

STREAMS = ("requests", "tasks", "sweep", "commits", "dlq", "blobs")
Stage = Literal["connecting", "starting", "serving", "draining"]


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The usage of a stream. `full` is the used share of the limit that is closest to being reached; 0 without
    limits."""

    messages: int
    bytes: int
    full: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """The last sweep, at `at` (Unix seconds): the number of change sets with queued requests (`waiting`), and of change
    sets whose update is due (`owing`)."""

    at: float
    waiting: int
    owing: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that is cheap to read for any number of owned change sets. All times are in seconds.

    - `stage`: `connecting` until there is a first connection to NATS, `starting` until tasks are pulled, `draining`
      from SIGTERM on.
    - `nats_away`: how long there has been no connection; 0 while there is one. `nats_rtt`: the last round trip.
    - `clock_ahead`: how far the clock of the server is ahead of that of NATS, as of the last check; negative: behind.
    - `progress_silent`: the time since the loop that sends progress acks last began a round.
    - `missing`: which streams are missing, or why they cannot be checked; empty if all exist.
    - `trouble`: the newest failure that stopped the progress of a change set; empty if there is none.
    - `streams`: by kind. These, `oldest_request_age`, `tasks_waiting` (tasks that no server has) and `tasks_in_hand`
      are as of the last check.
    - `sweep`: None unless this server is the sweeper.
    - `tasks_held`: tasks without a free slot. `deletes_queued`: requests that are decided and not deleted yet.
    - `spark_load`: calls that wait for a Spark job, and jobs that run; the small and the large ones of each.
    - `spark`: `starting`, `ready`, `restarting`, `stopped`, or `down: REASON`.
    """

    server_id: str
    stage: Stage
    ack_wait: float
    ping_interval: float
    nats_away: float = 0.0
    nats_rtt: float = 0.0
    clock_ahead: float = 0.0
    progress_silent: float = 0.0
    missing: str = ""
    trouble: str = ""
    losses: tuple[str, ...] = ()
    spark: str = "starting"
    durability: str | None = None
    slots: int = 0
    slots_used: int = 0
    owned: int = 0
    sweeper: bool = False
    sweep: Sweep | None = None
    streams: Mapping[str, StreamUsage] = field(default_factory=dict)
    oldest_request_age: float = 0.0
    tasks_waiting: int = 0
    tasks_in_hand: int = 0
    tasks_held: int = 0
    deletes_queued: int = 0
    spark_load: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


@dataclass(frozen=True, slots=True)
class Census:
    """The state that requires going through all owners: the number of owners by phase, and by state of their update;
    the updates that have run for a long time; the age of the oldest update that is due, in seconds; the number of
    values; the bytes of the longest log after its newest checkpoint."""

    phases: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[str, int] = field(default_factory=dict)
    slow_updates: tuple[DvuProgress, ...] = ()
    debt_age: float = 0.0
    values: int = 0
    tail_max: int = 0


class Observed(Protocol):
    """A server whose state can be read. Call its methods in the event loop."""

    def snapshot(self) -> Snapshot: ...

    def census(self) -> Census: ...
