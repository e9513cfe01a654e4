"""Counts the announced attempts at requests that ended because the simulation struck the server that made them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rebaser_core.commit import DVU_ATTEMPT, PULL_ATTEMPT, Commit, Kind

MAX_DEATHS = 3  # attempts that end so until a request is dead; a setting of the simulated servers


class Strikes:
    """When servers were killed, or were paused for longer than a lease lasts. Times are virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._at: defaultdict[str, list[float]] = defaultdict(list)

    def note(self, server: str) -> None:
        self._at[server].append(self.now())

    def of(self, server: str) -> Sequence[float]:
        return self._at[server]


@dataclass
class Tries:
    """The attempts at the requests of one change set. `ended` has, by request sequence, how many a fault has ended."""

    strikes: Strikes
    ended: Counter[int] = field(default_factory=Counter)
    _deaths: dict[int, int] = field(default_factory=dict)  # deaths by request sequence, according to the log
    # Running attempts: the server, and the earliest time of their start.
    _open: dict[int, tuple[str, float]] = field(default_factory=dict)
    _at: float = 0.0  # time of the newest commit

    def note(self, commit: Commit) -> None:
        """Note that `commit` was stored. It may end attempts, and announce another one."""
        attempt = commit.attempt
        for sequence, (owner, since) in list(self._open.items()):
            if commit.owner == owner and not _ends(commit, sequence):
                continue
            del self._open[sequence]
            same = attempt is not None and attempt.sequence == sequence
            taken_back = same and attempt is not None and attempt.deaths < self._deaths[sequence]
            if not taken_back:
                # A server that stood still may have a task that was meanwhile delivered to `owner`, too. It then takes
                # the attempt for one that ended.
                struck = (*self.strikes.of(owner), *self.strikes.of(commit.owner))
                self.ended[sequence] += any(at >= since for at in struck)
        if attempt is not None:
            if attempt.deaths > self._deaths.get(attempt.sequence, 0):
                # A server may be killed after it has sent the announcement, and before the announcement arrives.
                self._open[attempt.sequence] = commit.owner, self._at
            self._deaths[attempt.sequence] = attempt.deaths
        self._at = self.strikes.now()


def _ends(commit: Commit, sequence: int) -> bool:
    """Return whether a commit shows that its owner has ended the attempt at `sequence`. Attempts at requests and
    updates go on side by side."""
    if commit.attempt is not None:
        return commit.attempt.sequence == sequence
    if sequence == PULL_ATTEMPT:
        return commit.kind is Kind.REPLAY
    return commit.kind in ((Kind.DVU,) if sequence == DVU_ATTEMPT else (Kind.REBASE, Kind.CREATE, Kind.MARK))
