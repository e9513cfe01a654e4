"""What the answers of the JSON API about values look like, as in `answers`."""

from typing import Literal

from pydantic import Field

from rebaser.console.answers import Answer, Branch, Count, Page, Text


class Fault(Answer):
    """Why a value is in error. `origin`: the id of the value where that began; empty for this value."""

    code: str
    message: str
    origin: str


class Cell(Answer):
    """A value in a table: the start of the text of its JSON, and of its definition, if it is derived."""

    state: str
    text: str
    error: Fault | None


class Side(Cell):
    definition: Text


class Row(Side):
    id: str


class Group(Answer):
    """The values whose ids begin with `group`."""

    group: str
    count: int
    errors: int
    stale: int


class Head(Answer):
    """The state of a change set: the log position that it is of, and the numbers of its values."""

    position: int
    covers: int
    total: int
    errors: int
    stale: int


class Function(Answer):
    name: str
    count: int


class Values(Head):
    functions: list[Function]
    prefix: str
    tree: bool
    matching: int
    rows: list[Row | Group]
    next: Text


class LongText(Answer):
    """The start of a text, the number of its characters or bytes, and whether this is all of it."""

    text: str
    length: int
    whole: bool


class Source(Answer):
    id: Text = None
    match: Text = None


class GivenInput(Answer):
    name: str
    single: bool
    count: int
    sources: list[Source]


class Definition(Answer):
    """A definition. The last fields are those of a function."""

    op: Literal["set", "derive", "unset"]
    text: Text
    function: str = ""
    is_plain: bool = True
    params: str = ""
    inputs: list[GivenInput] = Field(default_factory=list)
    input_count: int = 0
    is_whole: bool = True


class Input(Row):
    """An input of a value: another value, or a pattern with the number of its matches."""

    name: str
    matches: Count


class Neighbours(Page):
    position: int
    id: str
    side: Literal["inputs", "dependents"]
    rows: list[Input | Row]


class Loading(Answer):
    """How far the loading of values is. `stage` is None if they are not loaded now."""

    stage: Text
    done: int = 0
    total: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Elsewhere(Answer):
    """A change set with another definition of a value."""

    change_set_id: str
    relation: Literal["target", "branch", "sibling"]
    last_commit: int
    last_commit_time: str
    how: Literal["unknown", "removed", "other", "older"]
    text: Text
    problem: str = ""


class ElsewherePage(Answer):
    at: float
    position: int
    rows: list[Elsewhere]
    offset: int
    looked: int
    matching: int
    next: Count


class Value(Head):
    id: str
    state: str
    value: LongText | None
    error: Fault | None
    definition: Definition | None
    defined: Count
    why: str
    advice: str
    path: list[Row]
    inputs: list[Input]
    input_count: int
    dependents: list[Row]
    dependent_count: int


class Node(Row):
    """A value in a graph. `level`: its distance from the value that was asked for, negative for inputs."""

    level: int
    expanded: bool
    more_inputs: Count
    more_dependents: Count


class Edge(Answer):
    from_: str = Field(alias="from")
    to: str


class Graph(Answer):
    position: int
    id: str
    nodes: list[Node]
    edges: list[Edge]


class Different(Answer):
    id: str
    kind: Literal["edited", "derived", "removed", "added"]
    a: Side
    b: Side


class Compared(Page):
    positions: list[int]
    totals: list[int]
    counts: dict[str, int]
    rows: list[Different]


class BranchChange(Answer):
    id: str
    base: Text
    ours: Text
    theirs: Text
    moved: bool
    landed: bool


class Moved(Answer):
    id: str
    before: Cell
    after: Cell


class BranchChanges(Page):
    branch: Branch
    position: int
    target_position: int
    rows: list[BranchChange]
    derived: list[Moved] | None
    derived_count: Count
    derived_offset: int
    derived_limit: int


class Conflict(Answer):
    id: str
    base: Text
    ours: Text
    theirs: Text


class Conflicts(Answer):
    branch: Branch
    position: int
    matching: int
    rows: list[Conflict]
    next: Text
