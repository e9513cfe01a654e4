"""The rules of the model of branches (`tests.support.branches`), and its states and commits, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Definition: TypeAlias = int | str | None
Definitions: TypeAlias = dict[str, Definition]
Strategy = Literal["record", "ours", "theirs"]
RULES = {
    "a base moves with its commit": "a replay moves `base` to the position up to which it read the target",
    "the first change keeps the base": "an edit of an id that is changed already keeps the recorded base",
    "what stood before is taken before": "the before-images of a commit are those of the state in front of it",
    "blind edits settle nothing": "an edit settles a conflict only if its author saw the conflict (`at`)",
    "edits see what came later": "an edit with `at` is refused if one of its ids, or a conflict on it, is newer",
    "equal to its base is not edited": "an id whose definition here equals its base takes the target's",
    "a conflict ends when its sides agree": "a conflict ends when the target returns to the base that both sides left",
    "conflicts outlive replays": "a second replay keeps the base of a conflict that exists",
    "theirs takes conflicts": "the strategies settle the conflicts that exist, not only what the target changed",
    "taken ids leave conflicts": "an id whose definition a replay takes is neither changed nor in conflict",
    "own applies are agreed": "the base of an id that the target took from here is what stood here then",
    "a closed set takes no edit": "a closed set accepts neither edits nor replays",
    "a source is rebased between applies": "an apply is stale if its source has not replayed its last one",
    "an apply is read at its position": "an apply takes the definitions of the position that it names",
    "applied means all of it": "a branch is `applied` only if it has no own edit behind the position",
    "a name made anew is another set": "an apply of a predecessor settles nothing; no base is below the target's birth",
    "a create begins a log": "a change set that is created on a tombstone has nothing of the old one",
    "applies meet what they expect": "an apply that would overwrite what its source never saw is a conflict",
    "conflicts are not applied": "a branch with conflicts cannot be applied",
    "strict means unmoved": "a strict apply is refused if the target was edited behind the base",
}


class RefusedError(Exception):
    """A request was refused; the text of the exception is the error code. `conflicts` has, by id, the definition that
    was expected, the present one, and the one that the request would have set."""

    def __init__(self, code: str, conflicts: Mapping[str, tuple[Definition, ...]] | None = None) -> None:
        super().__init__(code)
        self.conflicts = dict(conflicts or {})


@dataclass(frozen=True)
class Conflict:
    """A conflict about one id. `base` is the definition that both sides replaced, `told` the sequence of the replay
    that recorded the conflict."""

    base: Definition
    told: int


@dataclass
class Book:
    """The state of one change set at one position of its log."""

    birth: int = 0
    sequence: int = 0
    cells: Definitions = field(default_factory=dict)
    edited: dict[str, int] = field(default_factory=dict)  # by id: the commit that last defined it
    last_edit: int = 0
    own: int = 0  # sequence of the newest commit with an edit of the branch itself, or of the create commit
    target: str | None = None
    base: int = 0  # position of the target
    changes: Definitions = field(default_factory=dict)  # by id: its definition at the base
    conflicts: dict[str, Conflict] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)  # by source: sequence of the newest commit that applied it
    status: Literal["open", "applied", "abandoned", "kept", "deleted"] = "open"
    protected: bool = False

    def theirs(self, id_: str) -> Definition:
        """Return the definition that the target had at the base."""
        return self.changes.get(id_, self.cells.get(id_))


@dataclass(frozen=True)
class Commit:
    """One entry of a log. `source` is the position that was applied, or up to which the target was replayed."""

    sequence: int
    kind: Literal["create", "edit", "apply", "revert", "replay", "mark"]
    delta: Definitions = field(default_factory=dict)
    before: Definitions = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    source: tuple[str, int] | None = None
    bases: Definitions = field(default_factory=dict)
    conflicts: Definitions = field(default_factory=dict)
    strategy: Strategy = "record"
    status: Literal["open", "applied", "abandoned", "deleted"] | None = None
    protected: bool | None = None
    keep: bool = False
