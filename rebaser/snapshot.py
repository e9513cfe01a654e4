"""The state of a server at one moment, as probes, metrics and pings report it. This module contains only data.

Invariant: the state is read anew for each probe, scrape or ping. No counter is updated as the state changes, so a
report cannot differ from the state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rebaser_core.messages import DvuProgress

STREAMS = ("requests", "tasks", "sweep", "commits", "dlq", "blobs")
PUT_OFF = "put_off"  # the state of an update that is deferred, because servers died or hung while they computed it
Stage = Literal["connecting", "starting", "serving", "draining"]


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The usage of a stream. `full` is the used share (0 to 1) of the limit that is closest to being reached; 0 if the
    stream has no limit. `copies_behind` is the number of its copies that are offline or have not caught up."""

    messages: int
    bytes: int
    full: float
    copies_behind: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of the last sweep. `at` is the time of the sweep on the clock of NATS, in Unix seconds. `waiting` is
    the number of change sets with queued requests, and `owing` the number of change sets whose update is due.
    `oldest_debt` is the age of the oldest of these updates in seconds, as far as the sweeper knows."""

    at: float
    waiting: int
    owing: int
    oldest_debt: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The part of the state that can be read quickly, however many change sets a server owns. Times are in seconds.

    - `stage`: `connecting` until there is a first connection to NATS, `starting` until tasks are pulled, `draining`
      from SIGTERM on.
    - `nats_away`: how long there has been no connection; 0 while there is one. `nats_problem`: why the last attempt to
      connect failed; empty if none has failed since the start, or since the connection was lost. `nats_rtt`: the
      duration of the last round trip. `nats_version`: the version of nats-server; empty before the first connection.
      `nats_calls`: the number of JetStream API calls in flight.
    - `clock_ahead`: how far the clock of the server was ahead of the clock of NATS at the last check; negative if it
      was behind.
    - `progress_silent`: the time since the loop that sends progress acks last began a round.
    - `missing`: which streams are missing, why they cannot be checked, or why they store or deliver nothing; empty if
      there is no such problem.
    - `trouble`: the newest failure that stopped the progress of a change set; empty if there is none.
    - `losses`: descriptions of the streams that were lost.
    - `streams`: the usage of each stream, by its name in `STREAMS`. `tasks_waiting`: the number of tasks that no server
      has. `tasks_in_hand`: the number of tasks that servers have. These and `oldest_request_age` are as of the last
      check of the streams.
    - `sweep`: the result of the last sweep; None unless this server is the sweeper.
    - `tasks_held`: tasks without a free slot. `tasks_following`: tasks whose change sets have a previous owner that is
      still ending. `tasks_returned`: tasks that were returned with a delay that is not over. `deletes_queued`: requests
      that are decided and not deleted yet.
    - `spark_load`: the numbers of small and of large calls that wait for a Spark job, then those of running jobs.
    - `spark`: `starting`, `ready`, `restarting`, `stopped`, or `down: REASON`.
    """

    server_id: str
    stage: Stage
    ack_wait: float
    ping_interval: float
    nats_away: float = 0.0
    nats_problem: str = ""
    nats_rtt: float = 0.0
    nats_version: str = ""
    nats_calls: int = 0
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
    tasks_following: int = 0
    tasks_returned: int = 0
    deletes_queued: int = 0
    spark_load: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


@dataclass(frozen=True, slots=True)
class SlowUpdate:
    """An update that has run for a long time: the message that reports it, its stage (see
    `rebaser.runtime.progress.Progress`), and the tag of its Spark job, which is empty while it has none."""

    report: DvuProgress
    stage: str = "plan"
    plan: str = ""
    wave: int = 0
    spark_tag: str = ""


@dataclass(frozen=True, slots=True)
class Census:
    """The part of the state that is counted by visiting all owners.

    - `phases`: the number of owners in each phase. `updates`: the number of owners in each state of their update.
    - `slow_updates`: the updates that have run for a long time.
    - `debt_age`: the age of the oldest update that is due, in seconds.
    - `update_silent`: the longest time, in seconds, for which Spark has processed no value of a running update.
    - `append_age`: the seconds for which the oldest append in progress has waited for NATS.
    - `values`: the number of values in all owned change sets.
    - `tail_max`: the largest number of bytes that a log has after its newest checkpoint.
    """

    phases: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[str, int] = field(default_factory=dict)
    slow_updates: tuple[SlowUpdate, ...] = ()
    debt_age: float = 0.0
    update_silent: float = 0.0
    append_age: float = 0.0
    values: int = 0
    tail_max: int = 0


class Observed(Protocol):
    """A server whose state can be read. Call its methods in the event loop."""

    def snapshot(self) -> Snapshot: ...

    def census(self) -> Census: ...
