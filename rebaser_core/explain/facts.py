"""Defines the facts about a change set that can be observed from outside: facts about its queue, task, log, branch and
owner, about the servers, and about the streams.

Invariant: facts are plain values, and all of them are gathered before reasons are derived from them. All ages and times
are in seconds.
"""

from dataclasses import dataclass

from rebaser_core.explain.owner_facts import OwnerFacts


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server that has answered a ping.

    `trouble` is the reason why it is not `ready`. `spark` is the state of its Spark engine. `owned` is the number of
    change sets that it owns, and `slots` is the number that it can work on at the same time. `functions` are the names
    of its functions. `about` is its report on the change set, or None if its release is too old to send such a report.
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
    """The undecided requests of the change set: their number (`waiting`), the age of the oldest (`oldest`), and the
    maximum number of requests in the queue (`limit`; 0 means no limit)."""

    waiting: int = 0
    oldest: float = 0.0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The task of the change set.

    `delivered` says whether a server has received the task. `ahead` is the number of tasks before it that no server has
    received yet. `ack_wait` is the time after which NATS delivers the task again if the server stays silent.
    `paused` says whether an operator has paused the delivery of all tasks, and `pulls` is the number of servers that
    wait for tasks.
    """

    age: float
    delivered: bool
    ahead: int = 0
    ack_wait: float = 6.0
    paused: bool = False
    pulls: int = 0


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """The record of attempts in the newest commit. `what` is `request`, `update` or `pull`.

    `held` is the number of attempts after which the request could not be decided yet. `deaths` is the number of
    attempts during which a server died or hung, or which are still in progress. `since` is the time since the first
    attempt at a request, or since the last attempt at an update or a pull.
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
    - `problem` is the reason why the commit cannot be read, or empty if it can be read. If it cannot be read, only
      `sequence` and `age` are also set.
    - `checkpoint_problem` is the reason why the checkpoint to which the commit refers cannot be read, or empty if it
      can be read.
    - `skew` is the time by which this server's clock was ahead of the NATS server's clock when it wrote the commit.
    - `errors` is the number of values in error, as far as the commit tells; otherwise 0.
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
    errors: int = 0


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

    `nats_problem` is the reason why JetStream did not answer, or empty if it did. If it is not empty, all other facts
    except `servers` are missing. `api_seconds` is how long JetStream took for its slowest answer. `rtt` is the duration
    of a round trip from this client to NATS. `skew` is the time by which this client's clock is ahead of the clock of
    NATS.
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
    skew: float = 0.0

    @property
    def owner(self) -> tuple[ServerFacts, OwnerFacts] | None:
        """The server that has the task of the change set, and its report, or None if no server has reported that it has
        the task."""
        for server in self.servers:
            if server.about is not None and server.about.phase is not None:
                return server, server.about
        return None

    @property
    def trouble(self) -> OwnerFacts | None:
        """The report with the newest failure of the change set, or None if there was no failure, or if a later commit
        shows that the change set has made progress since the failure."""
        known = [server.about for server in self.servers if server.about is not None and server.about.trouble]
        newest = min(known, key=lambda about: about.trouble_age, default=None)
        log = self.log
        over = newest is not None and log is not None and log.kind != "attempt" and log.age < newest.trouble_age
        return None if over else newest

    @property
    def works(self) -> bool:
        """Whether there is work to do, because requests are waiting or an update is due."""
        return self.queue.waiting > 0 or (self.log is not None and self.log.debt > 0)
