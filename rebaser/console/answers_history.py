"""What the answers of the JSON API about commits, updates, dead letters and actions look like, as in `answers`."""

from typing import Literal

from pydantic import Field

from rebaser.console.answers import ActivityJson, AnswerJson, Count, CountedJson, FromJson, Text
from rebaser.console.answers_values import CellJson, DefinitionJson, LongTextJson


class RequestJson(AnswerJson):
    request_id: str
    outcome: str
    updates: int
    author: str
    message: str
    code: Text
    reason: str


class RevertedJson(AnswerJson):
    first: int
    last: int


class EntryJson(AnswerJson):
    """A commit as a row of the log, with some of its requests."""

    position: int
    time: str
    kind: str
    owner: str
    changes: Count
    covers: Count
    bytes: int
    trace: Text
    from_: FromJson | None = Field(alias="from")
    reverts: RevertedJson | None
    mark: Text
    request_count: int
    requests: list[RequestJson]


class CommitsJson(AnswerJson):
    trace_url: Text
    rows: list[EntryJson]
    next: Count


class DefiningJson(EntryJson):
    after: DefinitionJson | None


class HistoryJson(AnswerJson):
    rows: list[DefiningJson]
    next: Count
    complete: bool
    scanned: int


class ChangeJson(AnswerJson):
    id: str
    before: Text
    after: Text
    known: bool


class RequestChangesJson(AnswerJson):
    request_id: str
    changes: list[ChangeJson]
    change_count: int


class ResultJson(CellJson):
    id: str


class CommitJson(EntryJson):
    trace_url: Text
    id: str
    previous: Count
    checkpoint: Count
    edits: list[RequestChangesJson]
    computed: list[ResultJson]
    computed_count: int


class CopyJson(AnswerJson):
    change_set_id: str
    position: int
    kind: str
    request: RequestJson | None


class BlameJson(AnswerJson):
    """Who last defined a value, and the commits that copied the definition from there, the newest first."""

    change_set_id: Text
    position: Count
    time: Text
    request: RequestJson | None
    copies: list[CopyJson]
    lost: Text


class CauseJson(AnswerJson):
    """The request that changed the value `id` in the commit at `position`."""

    id: str
    position: int
    time: Text
    request: RequestJson | None


class BlamedJson(AnswerJson):
    """`cause`: because of what the value is stale."""

    blame: BlameJson | None
    cause: CauseJson | None


class ReasonJson(AnswerJson):
    code: str
    text: str
    advice: str
    waits: bool


class ExplainedJson(AnswerJson):
    at: float
    waits: bool
    reasons: list[ReasonJson]


class HistorySizeJson(AnswerJson):
    commits: int
    bytes: int
    oldest: Count
    since: Text
    taken: list[FromJson]


class DueReasonJson(AnswerJson):
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


class DueReasonsJson(AnswerJson):
    at: float
    reasons: dict[str, DueReasonJson]


class EngineJson(AnswerJson):
    server: str
    dvu: str


class UpdatingJson(ActivityJson):
    server: str


class UpdatesJson(CountedJson):
    spark_ui: Text
    engines: list[EngineJson]
    rows: list[UpdatingJson]


class PastUpdateJson(AnswerJson):
    position: int
    time: str
    server: str
    covers: int
    edits: Count
    waited: float | None
    values: Count
    stages: dict[str, float] | None


class PastUpdatesJson(AnswerJson):
    now: DueReasonJson
    rows: list[PastUpdateJson]
    position: int
    scanned: int
    complete: bool


class DeadLetterRowJson(AnswerJson):
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


class DeadLettersJson(AnswerJson):
    actions: bool
    at: float
    total: int
    rows: list[DeadLetterRowJson]
    next: Count
    complete: bool


class CodeCountJson(AnswerJson):
    code: str
    count: int


class CodesJson(AnswerJson):
    codes: list[CodeCountJson]
    counted: int
    complete: bool


class DeadLetterJson(DeadLetterRowJson):
    actions: bool
    trace: Text
    trace_url: Text
    headers: dict[str, str]
    problem: Text
    payload: LongTextJson


class QueuedRowJson(AnswerJson):
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


class QueueJson(AnswerJson):
    trace_url: Text
    rows: list[QueuedRowJson]
    next: Count


class QueuedJson(QueuedRowJson):
    payload: LongTextJson


class FormulaInputJson(AnswerJson):
    name: str
    id: str
    state: str
    text: str = ""
    error: object = None
    definition: Text = None


class CheckedJson(AnswerJson):
    problem: str
    inputs: list[FormulaInputJson]


class CoveredJson(AnswerJson):
    covered: bool
    ms: float


# -- actions -----------------------------------------------------------------------------------------------------------


class DoneJson(AnswerJson):
    """What was done: the position of the commit, and the numbers of updates and of conflicts in it."""

    commit: int
    updates: int
    conflicts: int


class RebasedJson(DoneJson):
    commit: int | None  # type: ignore[assignment]
    base: int


class CreatedJson(AnswerJson):
    change_set_id: str
    commit: int


class FailedLetterJson(AnswerJson):
    sequence: int
    code: str
    message: str


class LettersDoneJson(AnswerJson):
    done: int
    gone: int
    failed: list[FailedLetterJson]
    unsure: list[int]
    left: int


class SentJson(AnswerJson):
    commit: int
    updates: int
    ms: float
    workspace_id: str = ""
    change_set_id: str = ""


class BodyJson(AnswerJson):
    """Who asks, and why; nobody verifies the author."""

    author: str = Field("", max_length=128)
    message: str = Field("", max_length=1024)


Position = Field(gt=0, lt=2**63)


class EditBodyJson(BodyJson):
    """A new `value` or `definition` as JSON text, or `remove`. `at` is the position that the page showed."""

    id: str = Field(max_length=512)
    value: str = ""
    definition: str = ""
    remove: bool = False
    at: int = Position


class BranchBodyJson(BodyJson):
    name: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    at: int = Position


class RebaseBodyJson(BodyJson):
    strategy: Literal["record", "ours", "theirs"] = "record"


class ResolveBodyJson(BodyJson):
    """Takes the definitions of the change set `take`, or else one new definition."""

    ids: list[str] = Field(min_length=1, max_length=500)
    take: str = Field("", max_length=64)
    value: str = ""
    definition: str = ""
    remove: bool = False
    at: int = Position


class ApplyBodyJson(BodyJson):
    at: int = Position
    target_at: int = Position
    check: bool = False
    keep: bool = False


class RevertBodyJson(BodyJson):
    at: int = Position
    request: str = Field("", max_length=512)
    of: str = Field("", max_length=512)


class RecomputeBodyJson(BodyJson):
    function: str = Field("", max_length=512)


class LettersBodyJson(AnswerJson):
    """`count` confirms the number of sequences, if there are several."""

    sequences: list[int] = Field(min_length=1, max_length=100)
    count: int = 1


class SendBodyJson(AnswerJson):
    workspace: str
    change_set: str
    id: str
    formula: str = ""
    value: str = ""


class NothingJson(AnswerJson):
    pass
