"""Computes the activity of an installation: its active change sets, and the rates of requests and commits.

This module does no I/O; `fleet_watch` reads the data.

Invariant: the cost of `FleetState.look` depends on the number of active change sets, and the cost of
`FleetState.look_early` on the number of change sets that have changed since the last look. Neither depends on the
number of change sets that exist, except for copies of lists, which take 10 ns for each item. A change set is active if
it has changed, has queued requests, has a task, or has derived values to update.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, NamedTuple, Self, TypeAlias

from rebaser_client.admin.servers import ServerInfo, UpdateInfo
from rebaser_client.admin.stream_usage import TasksStatus
from rebaser_client.log.branches import BranchInfo, branch_info, edited_at
from rebaser_client.log.heads import Head
from rebaser_core.commit import BranchStatus
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import peek, read_sweep_headers
from rebaser_core.record import record

_BY_NAME = attrgetter("workspace", "change_set")  # several times as fast as to compare keys

_Work: TypeAlias = tuple[Mapping[ChangeSetKey, int], Mapping[ChangeSetKey, int], Mapping[ChangeSetKey, UpdateInfo]]
Activity = Literal["unreadable", "waiting", "updating", "due", "busy", "owned"]


@record
class ActiveChangeSet:
    """A change set that has changed, has queued requests, has a task, or has derived values to update.

    - `pending`: the number of requests in its queue. `has_task`: whether it has a task, which means that a server owns
      it or will own it.
    - `last_commit`: the log sequence of its newest commit. `committed_at`: the time when that commit was stored (Unix
      seconds). Both are 0 if there is no commit.
    - `debt`: whether derived values have to be updated. `update`: the update that has been running for a long time, if
      any.
    - `owner`: the id of the server that stored the newest commit. If the change set has a task, this server owns it,
      unless another server has taken it over and not yet stored a commit. Empty if there is no commit, or if the server
      runs an older release.
    - `errors`: the number of values whose newest result is an error, even if the result is stale; None if the newest
      commit does not contain this number.
    - `commits_per_second`: the rate since the previous call of `FleetState.look`.
    - `waiting`: the seconds for which its queue has had requests without a new commit; 0 if the queue is empty.
    - `problem`: the reason why the newest message of its log cannot be read; empty if the message can be read.
    """

    workspace: str
    change_set: str
    pending: int = 0
    has_task: bool = False
    last_commit: int = 0
    committed_at: float = 0.0
    debt: bool = False
    commits_per_second: float = 0.0
    waiting: float = 0.0
    update: UpdateInfo | None = None
    problem: str = ""
    owner: str = ""
    errors: int | None = None

    @property
    def key(self) -> ChangeSetKey:
        return ChangeSetKey(self.workspace, self.change_set)

    @property
    def activity(self) -> Activity:
        """The most urgent activity of the change set. Requests that make no progress are more urgent than requests that
        do."""
        if self.problem:
            return "unreadable"
        if self.pending and not self.commits_per_second:
            return "waiting"
        if self.update is not None:
            return "updating"
        if self.pending or self.commits_per_second:
            return "busy"
        return "due" if self.debt else "owned"


@dataclass(frozen=True, slots=True)
class FleetView:
    """The activity of an installation at the time `at` (Unix seconds). Rates are averages over the last `seconds`
    seconds.

    - `change_sets`: the active change sets of the observed workspace. `total`: the number of all its change sets.
    - `requests`: the number of requests in the queues of all workspaces, including decided requests that are not
      deleted yet. `oldest_request`: the age of the oldest of these requests, in seconds.
    - `tasks`: the state of the tasks consumer; None if no server has created the consumer yet.
    """

    at: float
    seconds: float
    servers: Sequence[ServerInfo]
    change_sets: Sequence[ActiveChangeSet]
    total: int
    requests: int = 0
    oldest_request: float = 0.0
    requests_per_second: float = 0.0
    commits_per_second: float = 0.0
    dead_letters: int = 0
    tasks: TasksStatus | None = None


class Look(NamedTuple):
    """The result of `FleetState.look`: the active change sets, sorted by name, the number of commits since the previous
    call, and the number of change sets."""

    rows: list[ActiveChangeSet]
    commits: int
    total: int


@dataclass(slots=True)
class LogHead:
    """What the headers of the newest message in a log say, and the number of commits since the previous call of
    `FleetState.look`.

    - `info`: the change set. `FleetState` keeps its field `behind` up to date.
    - `target`: the change set to which it can be applied; None if it is not a branch.
    - `edited`: the log sequence of the newest commit with edits.
    - `debt`: whether derived values have to be updated.
    - `problem`: the reason why the message cannot be read; empty if it can be read.
    """

    info: BranchInfo
    target: ChangeSetKey | None
    edited: int
    debt: bool
    problem: str
    commits: int = 0

    @classmethod
    def of(cls, key: ChangeSetKey, head: Head) -> Self:
        debt, problem = _read(head)
        edited, info = edited_at(head), branch_info(key, head)
        target = None if info.target is None else key.beside(info.target)
        return cls(info, target, head.sequence if edited == head.sequence else edited, debt, problem)

    @property
    def deleted(self) -> bool:
        return self.info.status == BranchStatus.DELETED

    @property
    def owes(self) -> bool:
        """Whether the change set is active although nothing has changed and nothing is queued."""
        return (self.debt or bool(self.problem)) and not self.deleted


class FleetState:
    """Keeps the facts about an installation's change sets from one call of `look` to the next."""

    def __init__(self) -> None:
        self._logs: dict[ChangeSetKey, LogHead] = {}
        self._owing: set[ChangeSetKey] = set()
        self._changed: set[ChangeSetKey] = set()  # since the last call of `look`
        self._fresh: set[ChangeSetKey] = set()  # those of them that no call of `look_early` has returned yet
        self._commits = 0  # since the last call of `look`
        self._deleted = 0
        self._waiting: dict[ChangeSetKey, float] = {}
        self._rows: dict[ChangeSetKey, ActiveChangeSet] = {}  # those of the last look, sorted by name
        self._complete = False  # whether `_rows` are of these logs
        self._unborn: set[ChangeSetKey] = set()  # those with requests, but without a log in the last call of `look`

    def begin(self, logs: dict[ChangeSetKey, LogHead]) -> None:
        """Replace all facts about logs with `logs`, which belongs to this object from now on. Their commits do not
        count as new."""
        self._logs, self._complete = logs, False
        self._changed, self._fresh, self._commits = set(), set(), 0
        self._owing = {key for key, log in logs.items() if log.owes}
        self._deleted = sum(log.deleted for log in logs.values())

    def committed(self, key: ChangeSetKey, log: LogHead, commits: int = 1) -> None:
        """Record that `commits` commits have arrived. `log` says what the newest message in the log of `key` now
        says."""
        before = self._logs.get(key)
        self._note(key, log)
        log.commits = commits if before is None else before.commits + commits
        self._commits += commits
        self._changed.add(key)
        self._fresh.add(key)

    def _note(self, key: ChangeSetKey, log: LogHead) -> None:
        before = self._logs.get(key)
        if before is not None and before.deleted:
            self._deleted -= 1
        self._logs[key] = log
        self._deleted += log.deleted
        if log.owes:
            self._owing.add(key)
        else:
            self._owing.discard(key)

    def change_sets(self) -> list[BranchInfo]:
        """Return each change set that has a log, including deleted change sets. As long as `begin` is not called, their
        order stays the same, new ones come last, and a change set of which nothing has changed is the same object."""
        logs = self._logs
        for log in logs.values():
            if log.target is not None:
                target = logs.get(log.target)
                behind = target is not None and target.edited > log.info.base
                if behind != log.info.behind:
                    log.info = replace(log.info, behind=behind)
        return [log.info for log in logs.values()]

    def look(
        self,
        now: float,
        seconds: float,
        pending: Mapping[ChangeSetKey, int],
        tasks: Mapping[ChangeSetKey, int],
        updates: Mapping[ChangeSetKey, UpdateInfo],
    ) -> Look:
        """Return the current activity.

        `now` is the time of a monotonic clock. `seconds` is the time since the previous call; 0 in the first call.
        """
        active = self._active(pending, tasks, updates)
        self._waiting = {key: self._waiting_since(key, now) for key in active if pending.get(key)}
        found = self._look(active, now, seconds, (pending, tasks, updates))
        for key in self._changed:
            self._logs[key].commits = 0
        self._changed, self._commits = set(), 0
        return found

    def look_early(
        self,
        now: float,
        seconds: float,
        pending: Mapping[ChangeSetKey, int],
        tasks: Mapping[ChangeSetKey, int],
        updates: Mapping[ChangeSetKey, UpdateInfo],
    ) -> Look:
        """Return the activity in the previous call, with the commits since then, which the next call of `look` counts,
        too. `seconds` is the time since the previous call of `look`.

        Only change sets with such commits are brought up to date.
        """
        work = pending, tasks, updates
        if not self._complete:
            return self._look(self._active(*work), now, seconds, work)
        return self._look(self._fresh, now, seconds, work, self._rows)

    def _active(self, *others: Iterable[ChangeSetKey]) -> list[ChangeSetKey]:
        return sorted(self._owing.union(self._changed, *others), key=_BY_NAME)

    def _waiting_since(self, key: ChangeSetKey, now: float) -> float:
        log = self._logs.get(key)
        return now if log is not None and log.commits else self._waiting.get(key, now)

    def _look(
        self,
        keys: Collection[ChangeSetKey],
        now: float,
        seconds: float,
        work: _Work,
        others: Mapping[ChangeSetKey, ActiveChangeSet] | None = None,
    ) -> Look:
        """Return the rows of `keys`, and those of `others`. Without `others`, `keys` are sorted by name."""
        rows, added, (pending, tasks, updates) = dict(others or {}), False, work
        for key in keys:
            log, queued = self._logs.get(key), pending.get(key, 0)
            arrived = 0 if log is None else log.commits
            if log is not None and log.deleted and not queued and key not in tasks:
                rows.pop(key, None)
                continue
            added = added or key not in rows
            rows[key] = ActiveChangeSet(
                key.workspace,
                key.change_set,
                queued,
                key in tasks,
                log.info.sequence if log else 0,
                log.info.time.timestamp() if log else 0.0,
                log.debt if log else False,
                _rate(arrived, seconds),
                now - self._waiting_since(key, now) if queued else 0.0,
                updates.get(key),
                log.problem if log else "",
                log.info.owner if log else "",
                log.info.errors if log else None,
            )
        if others is None:
            self._unborn = {key for key in rows if pending.get(key) and key not in self._logs}
        elif added:
            rows = dict(sorted(rows.items(), key=lambda row: _BY_NAME(row[0])))
        self._rows, self._complete, self._fresh = rows, True, set()
        # A change set exists from its first request on.
        total = len(self._logs) - self._deleted + sum(key not in self._logs for key in self._unborn)
        return Look(list(rows.values()), self._commits, total)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _read(head: Head) -> tuple[bool, str]:
    """Return whether derived values have to be updated, and the reason why the message cannot be read.

    The reason is empty if the message can be read.
    """
    try:
        peek(head.headers)
        return read_sweep_headers(head.headers)[1] > 0, ""
    except (UnsupportedVersion, UnprocessableError) as error:
        return False, error.message
