"""Which announced tries of requests were ended by what the simulation did to the servers that tried them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rebaser_core.commit import DVU_ATTEMPT, PULL_ATTEMPT, Commit, Kind

MAX_DEATHS = 3  # tries that end so until a request is given up; a setting of the simulated servers


class Strikes:
    """When servers were killed, or stood still for longer than a lease lasts. Times are virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._at: defaultdict[str, list[float]] = defaultdict(list)

    def note(self, server: str) -> None:
        self._at[server].append(self.now())

    def of(self, server: str) -> Sequence[float]:
        return self._at[server]


@dataclass
class Tries:
    """Those of one change set. `ended`: by request sequence, how many tries a strike ended."""

    strikes: Strikes
    ended: Counter[int] = field(default_factory=Counter)
    _deaths: dict[int, int] = field(default_factory=dict)  # by request sequence, as the log has it
    _open: dict[int, tuple[str, float]] = field(default_factory=dict)  # tries at work: by whom, not begun before
    _at: float = 0.0  # the newest commit's time

    def note(self, commit: Commit) -> None:
        """`commit` was stored: it may end tries, and announce another."""
        attempt = commit.attempt
        for sequence, (owner, since) in list(self._open.items()):
            if commit.owner == owner and not _ends(commit, sequence):
                continue
            del self._open[sequence]
            same = attempt is not None and attempt.sequence == sequence
            taken_back = same and attempt is not None and attempt.deaths < self._deaths[sequence]
            if not taken_back:
                self.ended[sequence] += any(at >= since for at in self.strikes.of(owner))
        if attempt is not None:
            if attempt.deaths > self._deaths.get(attempt.sequence, 0):
                # A server may be killed when it has sent the announcement, which arrives after that.
                self._open[attempt.sequence] = commit.owner, self._at
            self._deaths[attempt.sequence] = attempt.deaths
        self._at = self.strikes.now()


def _ends(commit: Commit, sequence: int) -> bool:
    """Whether a commit ends a try that its own owner is at: of a request, or of an update, which goes on beside it."""
    if commit.attempt is not None:
        return commit.attempt.sequence == sequence
    if sequence == PULL_ATTEMPT:
        return commit.kind is Kind.REPLAY
    return commit.kind in ((Kind.DVU,) if sequence == DVU_ATTEMPT else (Kind.REBASE, Kind.CREATE, Kind.MARK))
