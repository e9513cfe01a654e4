"""What the answers of the JSON API about commits, updates, dead letters and actions look like, as in `answers`."""

from typing import Literal

from pydantic import Field

from rebaser.console.answers import Activity, Answer, Count, Counted, From, Text
from rebaser.console.answers_values import Cell, Definition, LongText


class Request(Answer):
    request_id: str
    outcome: str
    updates: int
    author: str
    message: str
    code: Text
    reason: str


class Reverted(Answer):
    first: int
    last: int


class Entry(Answer):
    """A commit as a row of the log, with some of its requests."""

    position: int
    time: str
    kind: str
    owner: str
    changes: Count
    covers: Count
    bytes: int
    trace: Text
    from_: From | None = Field(alias="from")
    reverts: Reverted | None
    mark: Text
    request_count: int
    requests: list[Request]


class Commits(Answer):
    trace_url: Text
    rows: list[Entry]
    next: Count


class Defining(Entry):
    after: Definition | None


class History(Answer):
    rows: list[Defining]
    next: Count
    complete: bool
    scanned: int


class Change(Answer):
    id: str
    before: Text
    after: Text
    known: bool


class RequestChanges(Answer):
    request_id: str
    changes: list[Change]
    change_count: int


class Result(Cell):
    id: str


class Commit(Entry):
    trace_url: Text
    id: str
    previous: Count
    checkpoint: Count
    edits: list[RequestChanges]
    computed: list[Result]
    computed_count: int


class Copy(Answer):
    change_set_id: str
    position: int
    kind: str
    request: Request | None


class Blame(Answer):
    """Who last defined a value, and the commits that copied the definition from there, the newest first."""

    change_set_id: Text
    position: Count
    time: Text
    request: Request | None
    copies: list[Copy]
    lost: Text


class Cause(Answer):
    """The request that changed the value `id` in the commit at `position`."""

    id: str
    position: int
    time: Text
    request: Request | None


class Blamed(Answer):
    """`cause`: because of what the value is stale."""

    blame: Blame | None
    cause: Cause | None


class Reason(Answer):
    code: str
    text: str
    advice: str
    waits: bool


class Explained(Answer):
    waits: bool
    reasons: list[Reason]


class HistorySize(Answer):
    commits: int
    bytes: int
    oldest: Count
    since: Text
    taken: list[From]


class DueReason(Answer):
    """Why an update of derived values waits, and what its owner reports, if it answers."""

    state: str
    code: str
    text: str
    advice: str
    server: str = ""
    error: str = ""
    failures: int = 0
    retry_in: float | None = None
    deaths: int = 0


class DueReasons(Answer):
    at: float
    reasons: dict[str, DueReason]


class Engine(Answer):
    server: str
    dvu: str


class Updating(Activity):
    server: str


class Updates(Counted):
    spark_ui: Text
    engines: list[Engine]
    rows: list[Updating]


class PastUpdate(Answer):
    position: int
    time: str
    server: str
    covers: int
    edits: Count
    waited: float | None
    values: Count
    stages: dict[str, float] | None


class PastUpdates(Answer):
    now: DueReason
    rows: list[PastUpdate]
    position: int
    scanned: int
    complete: bool


class DeadLetterRow(Answer):
    sequence: int
    workspace_id: str
    change_set_id: str
    request_id: str
    code: str
    reason: str
    attempts: int
    redrive: int
    server: str
    time: str


class DeadLetters(Answer):
    actions: bool
    at: float
    total: int
    rows: list[DeadLetterRow]
    next: Count
    complete: bool


class CodeCount(Answer):
    code: str
    count: int


class Codes(Answer):
    codes: list[CodeCount]
    counted: int
    complete: bool


class DeadLetter(DeadLetterRow):
    actions: bool
    trace: Text
    trace_url: Text
    headers: dict[str, str]
    problem: Text
    payload: LongText


class QueuedRow(Answer):
    """A request in a queue. `decided`: the log has its decision, so that it is only to be deleted."""

    sequence: int
    time: str
    bytes: int
    trace: Text
    decided: bool
    request_id: str
    author: str
    message: str
    kind: str
    updates: Count
    problem: Text


class Queue(Answer):
    trace_url: Text
    rows: list[QueuedRow]
    next: Count


class Queued(QueuedRow):
    payload: LongText


class FormulaInput(Answer):
    name: str
    id: str
    state: str
    text: str = ""
    error: object = None
    definition: Text = None


class Checked(Answer):
    problem: str
    inputs: list[FormulaInput]


class Covered(Answer):
    covered: bool
    ms: float


# -- actions -----------------------------------------------------------------------------------------------------------


class Done(Answer):
    """What was done: the position of the commit, and the numbers of updates and of conflicts in it."""

    commit: int
    updates: int
    conflicts: int


class Rebased(Done):
    commit: int | None  # type: ignore[assignment]
    base: int


class Created(Answer):
    change_set_id: str
    commit: int


class FailedLetter(Answer):
    sequence: int
    code: str
    message: str


class LettersDone(Answer):
    done: int
    gone: int
    failed: list[FailedLetter]
    unsure: list[int]
    left: int


class Sent(Answer):
    commit: int
    updates: int
    ms: float
    workspace_id: str = ""
    change_set_id: str = ""


class Body(Answer):
    """Who asks, and why; nobody verifies the author."""

    author: str = Field("", max_length=128)
    message: str = Field("", max_length=1024)


Position = Field(gt=0, lt=2**63)


class EditBody(Body):
    """A new `value` or `definition` as JSON text, or `remove`. `at` is the position that the page showed."""

    id: str = Field(max_length=512)
    value: str = ""
    definition: str = ""
    remove: bool = False
    at: int = Position


class BranchBody(Body):
    name: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    at: int = Position


class RebaseBody(Body):
    strategy: Literal["record", "ours", "theirs"] = "record"


class ResolveBody(Body):
    """Takes the definitions of the change set `take`, or else one new definition."""

    ids: list[str] = Field(min_length=1, max_length=500)
    take: str = Field("", max_length=64)
    value: str = ""
    definition: str = ""
    remove: bool = False
    at: int = Position


class ApplyBody(Body):
    at: int = Position
    target_at: int = Position
    check: bool = False
    keep: bool = False


class RevertBody(Body):
    at: int = Position
    request: str = Field("", max_length=512)
    of: str = Field("", max_length=512)


class RecomputeBody(Body):
    function: str = Field("", max_length=512)


class LettersBody(Answer):
    """`count` confirms the number of sequences, if there are several."""

    sequences: list[int] = Field(min_length=1, max_length=100)
    count: int = 1


class SendBody(Answer):
    workspace: str
    change_set: str
    id: str
    formula: str = ""
    value: str = ""


class Nothing(Answer):
    pass
