"""What the answers of the JSON API about values look like, as in `answers`."""

from typing import Literal

from pydantic import Field

from rebaser.console.answers import AnswerJson, BranchJson, Count, PageJson, Text


class FaultJson(AnswerJson):
    """Why a value is in error. `origin`: the id of the value where that began; empty for this value."""

    code: str
    message: str
    origin: str


class CellJson(AnswerJson):
    """A value in a table: the start of the text of its JSON, and of its definition, if it is derived."""

    state: str
    text: str
    error: FaultJson | None


class SideJson(CellJson):
    definition: Text


class RowJson(SideJson):
    id: str


class GroupJson(AnswerJson):
    """The values whose ids begin with `group`."""

    group: str
    count: int
    errors: int
    stale: int


class HeadJson(AnswerJson):
    """The state of a change set: the log position that it is of, and the numbers of its values."""

    position: int
    covers: int
    total: int
    errors: int
    stale: int


class FunctionJson(AnswerJson):
    name: str
    count: int


class ValuesJson(HeadJson):
    functions: list[FunctionJson]
    prefix: str
    tree: bool
    matching: int
    rows: list[RowJson | GroupJson]
    next: Text


class LongTextJson(AnswerJson):
    """The start of a text, the number of its characters or bytes, and whether this is all of it."""

    text: str
    length: int
    whole: bool


class SourceJson(AnswerJson):
    id: Text = None
    match: Text = None


class GivenInputJson(AnswerJson):
    name: str
    single: bool
    count: int
    sources: list[SourceJson]


class DefinitionJson(AnswerJson):
    """A definition. The last fields are those of a function."""

    op: Literal["set", "derive", "unset"]
    text: Text
    function: str = ""
    is_plain: bool = True
    params: str = ""
    inputs: list[GivenInputJson] = Field(default_factory=list)
    input_count: int = 0
    is_whole: bool = True


class InputJson(RowJson):
    """An input of a value: another value, or a pattern with the number of its matches."""

    name: str
    matches: Count


class NeighboursJson(PageJson):
    position: int
    id: str
    side: Literal["inputs", "dependents"]
    rows: list[InputJson | RowJson]


class LoadingJson(AnswerJson):
    """How far the loading of values is. `stage` is None if they are not loaded now."""

    stage: Text
    done: int = 0
    total: int = 0
    bytes: int = 0
    seconds: float = 0.0


class ElsewhereJson(AnswerJson):
    """A change set with another definition of a value."""

    change_set_id: str
    relation: Literal["target", "branch", "sibling"]
    last_commit: int
    last_commit_time: str
    how: Literal["unknown", "removed", "other", "older"]
    text: Text
    problem: str = ""


class ElsewherePageJson(AnswerJson):
    at: float
    position: int
    rows: list[ElsewhereJson]
    offset: int
    looked: int
    matching: int
    next: Count


class ValueJson(HeadJson):
    id: str
    state: str
    value: LongTextJson | None
    error: FaultJson | None
    definition: DefinitionJson | None
    defined: Count
    why: str
    advice: str
    path: list[RowJson]
    inputs: list[InputJson]
    input_count: int
    dependents: list[RowJson]
    dependent_count: int


class NodeJson(RowJson):
    """A value in a graph. `level`: its distance from the value that was asked for, negative for inputs."""

    level: int
    expanded: bool
    more_inputs: Count
    more_dependents: Count


class EdgeJson(AnswerJson):
    from_: str = Field(alias="from")
    to: str


class GraphJson(AnswerJson):
    position: int
    id: str
    nodes: list[NodeJson]
    edges: list[EdgeJson]


class DifferentJson(AnswerJson):
    id: str
    kind: Literal["edited", "derived", "removed", "added"]
    a: SideJson
    b: SideJson


class ComparedJson(PageJson):
    positions: list[int]
    totals: list[int]
    counts: dict[str, int]
    rows: list[DifferentJson]


class BranchChangeJson(AnswerJson):
    id: str
    base: Text
    ours: Text
    theirs: Text
    moved: bool
    landed: bool


class MovedJson(AnswerJson):
    id: str
    before: CellJson
    after: CellJson


class BranchChangesJson(PageJson):
    branch: BranchJson
    position: int
    target_position: int
    rows: list[BranchChangeJson]
    derived: list[MovedJson] | None
    derived_count: Count
    derived_offset: int
    derived_limit: int


class ConflictJson(AnswerJson):
    id: str
    base: Text
    ours: Text
    theirs: Text


class ConflictsJson(AnswerJson):
    branch: BranchJson
    position: int
    matching: int
    rows: list[ConflictJson]
    next: Text
