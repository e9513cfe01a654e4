"""What the answers of the JSON API look like. `openapi` makes the document of the API from these models.

The API makes its answers by hand, because checking each would cost time. The tests check every answer that they get
against the document, which allows no field that is not here.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Text = str | None
Count = int | None


class AnswerJson(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class DetailJson(AnswerJson):
    id: str
    message: str


class FailureJson(AnswerJson):
    """What failed. `position`: where in the log there was no such value."""

    code: str
    message: str
    details: list[DetailJson] = []
    position: int = 0


class ErrorJson(AnswerJson):
    """Why a request failed."""

    error: FailureJson


class UpdateJson(AnswerJson):
    """What an update of derived values that runs is doing."""

    done: int
    total: Count
    seconds: float
    stage: Literal["plan", "spark", "absorb", "commit"] | None
    plan: Literal["", "packets", "full graph"] | None
    wave: Count
    spark_tag: str | None


class FromJson(AnswerJson):
    change_set_id: str
    position: int


class BranchJson(AnswerJson):
    """Where a change set comes from, and where it stands."""

    workspace_id: str
    change_set_id: str
    last_commit: int
    last_commit_time: str
    status: str
    from_: FromJson | None = Field(alias="from")
    target: Text
    base: Count
    changes: int
    conflicts: int
    behind: bool
    protected: bool
    owner: str
    errors: Count
    follow: Text


class ActivityJson(AnswerJson):
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
    update: UpdateJson | None
    owner: str
    errors: Count
    problem: str


class ChangeSetJson(ActivityJson):
    """What a change set is doing, and where it stands, if it has a commit."""

    status: str
    target: Text
    from_: FromJson | None = Field(None, alias="from")
    base: Count = None
    changes: int = 0
    conflicts: int = 0
    behind: bool = False
    protected: bool = False
    follow: Text = None


class ServerJson(AnswerJson):
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


class StreamJson(AnswerJson):
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


class TasksJson(AnswerJson):
    pending: int
    in_flight: int


class SeriesJson(AnswerJson):
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


class OverviewJson(AnswerJson):
    version: str
    actions: bool
    problem: str
    at: float
    requests_per_second: float
    commits_per_second: float
    requests: int
    oldest_request: float
    dead_letters: int
    tasks: TasksJson | None
    total: int
    active: int
    activities: dict[str, int]
    due: int
    longest_waiting: float
    servers: list[ServerJson]
    server_count: int
    streams: list[StreamJson]
    change_sets: list[ActivityJson]
    branches: int
    branches_in_conflict: int
    with_errors: int
    branches_behind: int
    series: SeriesJson


class PageJson(AnswerJson):
    """A page of a list that is read by `offset`. `matching` is the length of the list."""

    matching: int
    offset: int
    limit: int


class CountedJson(PageJson):
    """A page with the number of those in each state. `problem`: why nothing newer than `at` (Unix seconds) is known."""

    problem: str
    at: float
    counts: dict[str, int]


class ChangeSetsJson(CountedJson):
    total: int
    rows: list[ChangeSetJson]


class ChangeSetNowJson(ChangeSetJson):
    at: float
    actions: bool
    trouble: str


class BranchesJson(CountedJson):
    rows: list[BranchJson]
