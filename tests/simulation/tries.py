"""Which announced tries of requests were ended by what the simulation did to the servers that tried them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rebaser_core.commit import Commit

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
    _open: tuple[int, str, float] | None = None  # the try at work: of which request, by whom, not begun before
    _at: float = 0.0  # the newest commit's time

    def note(self, commit: Commit) -> None:
        """`commit` was stored: it ends the try before it, and may announce another."""
        attempt, now = commit.attempt, self.strikes.now()
        deaths, before = (attempt.deaths, self._deaths.get(attempt.sequence, 0)) if attempt is not None else (0, 0)
        if self._open is not None and deaths >= before:  # not taken back
            sequence, owner, since = self._open
            self.ended[sequence] += any(at >= since for at in self.strikes.of(owner))
        self._open = None
        if attempt is not None:
            self._deaths[attempt.sequence] = deaths
            if deaths > before:
                # A server may be killed when it has sent the announcement, which arrives after that.
                self._open = attempt.sequence, commit.owner, self._at
        self._at = now
