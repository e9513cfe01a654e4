"""The facts about a change set that can be observed from outside: its queue, task, log, branch and owner, the servers
and the streams.

Invariant: facts are plain values, gathered before anything is concluded from them. All ages and times are in seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """A server's report on one change set.

    - `phase`: `loading`, `deciding`, `active`, `settling`, `releasing` or `rechecking` if it owns the change set;
      `no_slot` if it has the task, but no free slot; None if it has neither.
    - `idle`: the time since it last decided a request, ended an update, or finished loading.
    - `update`: `idle`, `owed` (due, not begun), `running`, or `waiting` (for the next attempt, in `retry_in`).
      `failures`: how many attempts in a row failed. `done` of `total` values are updated after `update_seconds`.
    - `stopping`: why it is giving up the change set; empty if it is not.
    - `deliveries`: how often its task was delivered; more than once means that an earlier owner ended early.
    - `trouble_code`, `trouble`, `trouble_age`: the newest failure that stopped this change set; empty if there was no
      recent one.
    - `rtt`: the last round trip from this server to NATS. `skew`: how far its clock is ahead of the clock of this
      client.
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
    """A server that answers. `spark` is the state of its engine. `about` is its report on the change set. It is None if
    its release is too old to send one."""

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
    """The undecided requests: how many there are, how old the first is, and how many the queue may hold (0: no
    limit)."""

    waiting: int = 0
    oldest: float = 0.0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The task of the change set. `delivered` tells whether a server has received it. `ahead` tells how many tasks
    before it no server has received yet."""

    age: float
    delivered: bool
    ahead: int = 0
    ack_wait: float = 6.0


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """The record, in the newest commit, of attempts at a `request`, the `update` or a `pull`.

    `held` tells how often the request was held because it cannot be decided yet. `deaths` tells how many servers died
    or hung during an attempt, the one in progress included. `since` is the number of seconds since the first attempt at
    a request, or since the last attempt at an update or a pull.
    """

    what: str
    held: int = 0
    deaths: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The newest commit.

    - `sequence`, `age`, `kind`, `owner` (the server that wrote it), `covers`, `debt`, as in `rebaser_core.commit`.
    - `missing`: functions that the server that wrote it lacked.
    - `problem`: why it cannot be read. If it cannot, only `sequence` and `age` are known.
    - `checkpoint_problem`: why the checkpoint that it names cannot be read; empty if the checkpoint can be read or it
      names none.
    - `skew`: how far the clock of its writer was ahead of the clock of NATS.
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
    """The condition of a change set as a branch. `status` is as in `BranchInfo`. `target`: empty if it has none."""

    status: str = "open"
    protected: bool = False
    target: str = ""
    behind: bool = False
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class DeadFacts:
    """The dead letters of the change set: how many, and the newest one."""

    count: int
    code: str = ""
    reason: str = ""
    request_id: str = ""
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream: its role (`requests`, `tasks`, `commits`, …), how full it is, and how many copies are behind."""

    role: str
    name: str
    percent_full: float | None = None
    copies: int = 1
    copies_behind: int = 0


@dataclass(frozen=True, slots=True)
class ChangeSetFacts:
    """All known facts about the change set. `log` is None if there is no commit. `task` is None if there is no task.

    `nats_problem` is the reason why JetStream could not be asked; if it is set, only `servers` are known. `api_seconds`
    is the time that the slowest answer of JetStream took. `rtt` is the round trip from this client to NATS.
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
        """The server that has the task of the change set, and its report; None if no server has it."""
        for server in self.servers:
            if server.about is not None and server.about.phase is not None:
                return server, server.about
        return None

    @property
    def trouble(self) -> OwnerFacts | None:
        """The report of the server that saw the newest failure of the change set; None if a later commit shows
        progress."""
        known = [server.about for server in self.servers if server.about is not None and server.about.trouble]
        newest = min(known, key=lambda about: about.trouble_age, default=None)
        log = self.log
        over = newest is not None and log is not None and log.kind != "attempt" and log.age < newest.trouble_age
        return None if over else newest

    @property
    def works(self) -> bool:
        """Whether there is work to do: requests, or an update that is due."""
        return self.queue.waiting > 0 or (self.log is not None and self.log.debt > 0)
