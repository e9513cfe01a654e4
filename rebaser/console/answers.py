"""What the answers of the JSON API look like. `openapi` makes the document of the API from these models.

The API makes its answers by hand, because checking each would cost time. The tests check every answer that they get
against the document, which allows no field that is not here.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Text = str | None
Count = int | None


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Detail(Answer):
    id: str
    message: str


class Failure(Answer):
    code: str
    message: str
    details: list[Detail] = []


class Error(Answer):
    """Why a request failed."""

    error: Failure


class Update(Answer):
    """What an update of derived values that runs is doing."""

    done: int
    total: Count
    seconds: float
    stage: Literal["plan", "spark", "absorb", "commit"] | None
    plan: Literal["", "packets", "full graph"] | None
    wave: Count


class From(Answer):
    change_set_id: str
    position: int


class Branch(Answer):
    """Where a change set comes from, and where it stands."""

    workspace_id: str
    change_set_id: str
    last_commit: int
    last_commit_time: str
    status: str
    from_: From | None = Field(alias="from")
    target: Text
    base: Count
    changes: int
    conflicts: int
    behind: bool
    protected: bool
    owner: str
    errors: Count
    follow: Text


class Activity(Answer):
    """What a change set is doing."""

    workspace_id: str
    change_set_id: str
    state: str
    pending: int
    has_task: bool
    last_commit: int
    last_commit_time: Text
    commits_per_second: float
    waiting: float
    debt: bool
    update: Update | None
    owner: str
    errors: Count
    problem: str


class ChangeSet(Activity):
    """What a change set is doing, and where it stands, if it has a commit."""

    status: str
    target: Text
    from_: From | None = Field(None, alias="from")
    base: Count = None
    changes: int = 0
    conflicts: int = 0
    behind: bool = False
    protected: bool = False
    follow: Text = None


class Server(Answer):
    id: str
    version: str
    owned: int
    slots: int
    dvu: str
    sweeper: bool
    durability: Text
    ready: bool
    trouble: str
    losses: list[str]


class Stream(Answer):
    name: str
    storage: str
    copies: int
    copies_behind: int
    messages: int
    bytes: int
    max_messages: int
    max_bytes: int
    max_message_size: int
    percent_full: float | None
    bytes_per_message: float | None
    retention: str
    discard: str
    max_age: float
    max_messages_per_subject: int
    duplicate_window: float
    durability: Text


class Tasks(Answer):
    pending: int
    in_flight: int


class Series(Answer):
    """How a few numbers developed. Each list has one number for each time in `at`."""

    span: float
    step: float
    at: list[float]
    requests_per_second: list[float]
    commits_per_second: list[float]
    requests: list[int]
    oldest_request: list[float]
    due: list[int]
    dead_letters: list[int]


class Overview(Answer):
    version: str
    actions: bool
    problem: str
    at: float
    requests_per_second: float
    commits_per_second: float
    requests: int
    oldest_request: float
    dead_letters: int
    tasks: Tasks | None
    total: int
    active: int
    activities: dict[str, int]
    due: int
    longest_waiting: float
    servers: list[Server]
    server_count: int
    streams: list[Stream]
    change_sets: list[Activity]
    branches: int
    branches_in_conflict: int
    with_errors: int
    branches_behind: int
    series: Series


class Page(Answer):
    """A page of a list that is read by `offset`. `matching` is the length of the list."""

    matching: int
    offset: int
    limit: int


class Counted(Page):
    """A page with the number of those in each state. `problem`: why nothing newer than `at` (Unix seconds) is known."""

    problem: str
    at: float
    counts: dict[str, int]


class ChangeSets(Counted):
    total: int
    rows: list[ChangeSet]


class ChangeSetNow(ChangeSet):
    at: float
    actions: bool
    trouble: str


class Branches(Counted):
    rows: list[Branch]


# -- values ------------------------------------------------------------------------------------------------------------


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
    inputs: list[GivenInput] = []
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
