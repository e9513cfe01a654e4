"""Defines what a server reports about a change set in its answer to a ping.

All ages and times are in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateTimes:
    """An update that a server committed at the log sequence `commit`. `stages` has the duration of each stage in
    seconds: `plan`, `spark` (with the wait for a job), `absorb` (reading the results) and `commit`."""

    commit: int
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """One server's report on one change set.

    - `phase` is `loading`, `deciding`, `active`, `settling`, `releasing` or `rechecking` if the server owns the change
      set, and `no_slot` if it has the task but no free slot. It is None if the server neither owns the change set nor
      has its task.
    - `idle` is the time since the server last decided a request, ended an update, or finished loading.
    - `reading` is what the server reads if it is loading the change set, or empty if that is not known.
    - `update` is `idle`, `owed` (due, but not started), `running`, or `waiting` (for the next attempt, which begins in
      `retry_in` seconds). `failures` is the number of consecutive failed attempts. `update_seconds` is how long the
      update has been running, and `done` is how many of `total` values it has updated. `sees_jobs` is true if `done`
      grows while a Spark job runs, and false if it grows only when a job ends. `silent` is how long Spark has processed
      no value of it, `spark_waits` is how many calls of updates wait for a Spark job, and `function` is the function
      that Spark has been running for seconds, or empty if that is not known.
    - `append_waits` is how long the append of the owner's current commit has been waiting for an answer of NATS, and
      `append_took` is how long its newest append of the last seconds took. They are 0 if there is none.
    - `stopping` is the reason why the server is giving up the change set, or empty if it is not giving it up.
    - `deliveries` is the number of times that the task was delivered. If it is more than 1, an earlier owner ended
      without completing the task.
    - `trouble_code`, `trouble` and `trouble_age` are the code, the text and the age of the newest failure that kept the
      server from working on the change set. If there was no recent failure, they are empty or 0.
    - `rtt` is the duration of the last round trip from the server to NATS. `skew` is the time by which the server's
      clock is ahead of this client's clock; None if the server's release is too old to send its time. `lag` is by how
      much timers of the server's event loop are late.
    - `recent_updates` are the newest updates of the change set that the server has committed, the oldest first. They
      are empty if the server was restarted since, or if its release is too old.
    """

    phase: str | None = None
    idle: float = 0.0
    reading: str = ""
    update: str = "idle"
    failures: int = 0
    retry_in: float = 0.0
    done: int = 0
    total: int | None = None
    update_seconds: float = 0.0
    sees_jobs: bool = False
    silent: float = 0.0
    spark_waits: int = 0
    function: str = ""
    append_waits: float = 0.0
    append_took: float = 0.0
    stopping: str = ""
    deliveries: int = 1
    trouble_code: str = ""
    trouble: str = ""
    trouble_age: float = 0.0
    rtt: float = 0.0
    skew: float | None = None
    lag: float = 0.0
    recent_updates: tuple[UpdateTimes, ...] = ()
