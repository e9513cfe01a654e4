"""Defines the facts about a change set that can be observed from outside: about its queue, task, log, branch and owner,
the servers and the streams.

Invariant: facts are plain values, and all of them are gathered before reasons are derived from them. All ages and times
are in seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """The report of one server on one change set.

    - `phase` is `loading`, `deciding`, `active`, `settling`, `releasing` or `rechecking` if the server owns the change
      set, and `no_slot` if it has the task but no free slot. It is None if the server has neither the change set nor
      its task.
    - `idle` is the time since the server last decided a request, ended an update, or finished loading.
    - `update` is `idle`, `owed` (due, but not begun), `running`, or `waiting` (for the next attempt, in `retry_in`).
      `failures` is the number of attempts that failed in a row. `update_seconds` is the duration of the update so far,
      and `done` is the number of values that it has updated, of `total` values.
    - `stopping` is the reason why the server is giving up the change set; empty if it is not doing so.
    - `deliveries` is the number of times that the task was delivered. If it is more than 1, an earlier owner ended
      without completing the task.
    - `trouble_code`, `trouble` and `trouble_age` are the code, the text and the age of the newest failure because of
      which the server could not continue to work on the change set. Without a recent failure, they are empty or 0.
    - `rtt` is the time of the last round trip from the server to NATS. `skew` is the time by which the clock of the
      server is ahead of the clock of this client.
    """

    phase: str | None = None
    idle: float = 0.0
    update: str = "idle"
    failures: int = 0
    retry_in: float = 0.0
    done: int = 0
    total: int | None = None
    update_seconds: float = 0.0
    stopping: str = ""
    deliveries: int = 1
    trouble_code: str = ""
    trouble: str = ""
    trouble_age: float = 0.0
    rtt: float = 0.0
    skew: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server that has answered a ping.

    `trouble` is the reason why it is not `ready`. `spark` is the state of its Spark engine. `owned` is the number of
    change sets that it owns, and `slots` the number that it can work on. `functions` are the names of its functions.
    `about` is its report on the change set; None if its release is too old to send one.
    """

    id: str
    ready: bool = True
    trouble: str = ""
    spark: str = "ready"
    owned: int = 0
    slots: int = 1
    functions: frozenset[str] = frozenset()
    about: OwnerFacts | None = None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The undecided requests of the change set: their number (`waiting`), the age of the first one (`oldest`), and the
    maximum number of requests in the queue (`limit`; 0: no limit)."""

    waiting: int = 0
    oldest: float = 0.0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The task of the change set.

    `delivered` says whether a server has received the task. `ahead` is the number of tasks before it that no server has
    received yet. `ack_wait` is the time without a sign of life after which NATS delivers the task again.
    """

    age: float
    delivered: bool
    ahead: int = 0
    ack_wait: float = 6.0


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """The record of attempts in the newest commit. `what` is `request`, `update` or `pull`.

    `held` is the number of times that the request could not be decided yet. `deaths` is the number of attempts during
    which a server died or hung, or which are still in progress. `since` is the time since the first attempt at a
    request, or since the last attempt at an update or a pull.
    """

    what: str
    held: int = 0
    deaths: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The newest commit of the change set.

    - `sequence`, `kind`, `covers` and `debt` have the same meaning as in `rebaser_core.commit`. `owner` is the server
      that wrote the commit.
    - `missing` are the functions that were missing on this server.
    - `problem` is the reason why the commit cannot be read; empty if it can be. If it cannot be read, only `sequence`
      and `age` are set.
    - `checkpoint_problem` is the reason why the checkpoint that the commit names cannot be read; empty if there is no
      such problem.
    - `skew` is the time by which the clock of this server was ahead of the clock of NATS when it wrote the commit.
    """

    sequence: int
    age: float = 0.0
    kind: str = ""
    owner: str = ""
    covers: int = 0
    debt: int = 0
    missing: tuple[str, ...] = ()
    attempt: AttemptFacts | None = None
    problem: str = ""
    checkpoint_problem: str = ""
    skew: float = 0.0


@dataclass(frozen=True, slots=True)
class BranchCondition:
    """The change set as a branch: its status, whether it is protected, its target (empty if it has none), whether the
    target was edited since the base (`behind`), and the number of its conflicts."""

    status: str = "open"
    protected: bool = False
    target: str = ""
    behind: bool = False
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class DeadFacts:
    """The dead letters of the change set: their number (`count`), and the code, reason, request id and age of the
    newest one."""

    count: int
    code: str = ""
    reason: str = ""
    request_id: str = ""
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream: its role (`requests`, `tasks`, `commits` and so on), the percentage of its size limit that is used, the
    number of its copies, and the number of copies that are behind or offline."""

    role: str
    name: str
    percent_full: float | None = None
    copies: int = 1
    copies_behind: int = 0


@dataclass(frozen=True, slots=True)
class ChangeSetFacts:
    """All facts about a change set. `log` is None if there is no commit, and `task` is None if there is no task.

    `nats_problem` is the reason why JetStream did not answer; if it is not empty, all other facts except `servers` are
    missing. `api_seconds` is the time of the slowest answer of JetStream. `rtt` is the time of a round trip from this
    client to NATS.
    """

    workspace: str
    change_set: str
    servers: tuple[ServerFacts, ...] = ()
    queue: QueueFacts = QueueFacts()
    task: TaskFacts | None = None
    log: LogFacts | None = None
    branch: BranchCondition = BranchCondition()
    dead: DeadFacts | None = None
    streams: tuple[StreamFacts, ...] = ()
    nats_problem: str = ""
    api_seconds: float = 0.0
    rtt: float = 0.0

    @property
    def owner(self) -> tuple[ServerFacts, OwnerFacts] | None:
        """The server that has the task of the change set, and its report; None if no server has reported that it has
        the task."""
        for server in self.servers:
            if server.about is not None and server.about.phase is not None:
                return server, server.about
        return None

    @property
    def trouble(self) -> OwnerFacts | None:
        """The report of the server with the newest failure of the change set; None if there was no failure, or if a
        later commit shows that the change set has made progress since."""
        known = [server.about for server in self.servers if server.about is not None and server.about.trouble]
        newest = min(known, key=lambda about: about.trouble_age, default=None)
        log = self.log
        over = newest is not None and log is not None and log.kind != "attempt" and log.age < newest.trouble_age
        return None if over else newest

    @property
    def works(self) -> bool:
        """Whether there is work to do, because requests are waiting or an update is due."""
        return self.queue.waiting > 0 or (self.log is not None and self.log.debt > 0)
