"""What the simulation knows of each change set: its requests, and their outcomes and results according to its log."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from rebaser_core.commit import Applied, BranchStatus, Decision
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesRequest
from rebaser_core.updates import Update
from tests.simulation.book import Book
from tests.simulation.forks import Deleted
from tests.simulation.rebases import Disputed
from tests.simulation.tries import Tries


class Violation(Exception):  # noqa: N818 - what it is
    """A guarantee was broken."""


def that(true: bool, otherwise: str) -> None:
    if not true:
        raise Violation(otherwise)


@dataclass
class Asked:
    """A request as it was stored. `request_id` is empty if the request cannot be read."""

    sequence: int
    request_id: str
    message: EnqueueUpdatesRequest | None
    at: float  # virtual seconds
    redrive: int = 0
    dead_at_ms: int = 0  # when the request died, if it was redriven
    outdated: Callable[[], float] = lambda: -math.inf  # returns when a deposed leader last answered a read

    @property
    def knows(self) -> float:
        """Return the virtual time up to which the deciding owner has seen everything that was stored, in other logs,
        too."""
        return self.at if self.outdated() < self.at else -math.inf


@dataclass
class History:
    """One change set: its requests, and their outcomes and results according to its log."""

    key: ChangeSetKey
    asked: dict[int, Asked] = field(default_factory=dict)
    decided: dict[int, tuple[Decision, int]] = field(default_factory=dict)
    outcomes: dict[str, tuple[Decision, int]] = field(default_factory=dict)  # the newest outcome of each request id
    answers: dict[str, list[tuple[Decision, int]]] = field(default_factory=dict)  # all outcomes of each request id
    dead: set[int] = field(default_factory=set)  # sequences of requests whose dead letter is stored
    skipped: set[int] = field(default_factory=set)  # sequences declared dead after they were decided and forgotten
    owners: list[str] = field(default_factory=list)  # the servers that owned the change set, in order
    last: int = 0
    applied: Applied | None = None
    covers: int = 0
    debt: int = 0
    checkpoint: int = 0
    named: list[tuple[int, int]] = field(default_factory=list)  # checkpoints: log sequence, when named (Unix ms)
    reads_from: dict[int, int] = field(default_factory=dict)  # by commit: the checkpoint that it names, 0 for none
    times: dict[int, float] = field(default_factory=dict)  # by log sequence, virtual seconds
    book: Book = field(default_factory=Book)
    # Edits of each commit, with the sequence of the commit before.
    deltas: dict[int, tuple[int, list[Update]]] = field(default_factory=dict)
    purged: int = 0  # the newest commit that was removed
    last_edit: int = 0
    commits: int = 0
    writer: str = ""
    birth: int = 0  # the commit that created the change set
    statuses: list[tuple[int, BranchStatus]] = field(default_factory=list)  # commits that changed the status
    targets: list[tuple[int, tuple[str, int]]] = field(default_factory=list)  # commits that set the target and the base
    own: int = 0  # newest commit with edits of the branch itself
    disputes: dict[str, Disputed] = field(default_factory=dict)  # conflicts with the target, by id
    disputed_at: dict[int, dict[str, Disputed]] = field(default_factory=dict)  # conflicts after each commit
    patches: dict[int, tuple[set[str], set[str]]] = field(
        default_factory=dict
    )  # by position: ids that are changed there, ids that the target took
    replays: set[int] = field(default_factory=set)  # commits of rebases and pulls
    # All commits that the state follows from, those of its origins included.
    lineage: list[int] = field(default_factory=list)
    # Commits that applied a branch, with its name, its position, and whether it stays open.
    takes: list[tuple[int, str, int, bool]] = field(default_factory=list)
    # The same, with those from before the change set was deleted.
    all_takes: list[tuple[int, str, int, bool]] = field(default_factory=list)
    born_ms: int = 0  # when the change set was created (Unix ms)
    restored: int = 0  # the newest commit that restored the change set after a deletion
    deleted: "Deleted | None" = None  # the state before the deletion
    follows: bool = False  # whether the branch follows its target
    # By server: when it last loaded the change set, in virtual seconds.
    loaded: dict[str, float] = field(default_factory=dict)
    excused: float = 0.0  # when a server last reported that it cannot bring the branch up to date, in virtual seconds
    edits_at: list[int] = field(default_factory=list)  # all commits with edits
    marks: list[tuple[int, bool]] = field(default_factory=list)  # commits that began or ended the protection
    tries: Tries = field(kw_only=True)

    @property
    def protected(self) -> bool:
        return self.marks[-1:] != [] and self.marks[-1][1]

    @property
    def status(self) -> BranchStatus:
        return self.statuses[-1][1] if self.statuses else BranchStatus.OPEN

    def status_at(self, position: int) -> BranchStatus:
        return ([BranchStatus.OPEN] + [status for at, status in self.statuses if at <= position])[-1]

    @property
    def gone(self) -> bool:
        return self.status is BranchStatus.DELETED

    @property
    def closed(self) -> bool:
        return self.status is not BranchStatus.OPEN

    def taken_at(self, *, base: int, name: str) -> bool:
        """Return whether the branch `name` was applied after `base`."""
        return any(at > base and one == name for at, one, _, _ in self.takes)

    @property
    def target(self) -> tuple[str, int]:
        """Return the target of the branch, and the base."""
        return self.targets[-1][1] if self.targets else ("", 0)

    def target_at(self, sequence: int) -> tuple[str, int]:
        """Return the target of the branch, and the base, as of the commit `sequence`."""
        return next((target for at, target in reversed(self.targets) if at <= sequence), ("", 0))

    def closed_at(self, time: float) -> bool:
        """Return whether the change set was closed at that time."""
        known = [status for at, status in self.statuses if self.times[at] <= time]
        return known[-1:] != [] and known[-1] is not BranchStatus.OPEN
