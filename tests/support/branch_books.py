"""The states and commits of change sets in the model of branches (`tests.support.branches`), as plain values."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Definition: TypeAlias = int | None
Definitions: TypeAlias = dict[str, Definition]
Strategy = Literal["record", "ours", "theirs"]


class RefusedError(Exception):
    """A request was refused; the text of the exception is the error code."""


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
    status: Literal["open", "applied", "abandoned", "deleted"] = "open"
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
