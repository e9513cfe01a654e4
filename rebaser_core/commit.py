"""Defines commits, which are the entries of a change set's log. Only commits change the state of a change set.

Invariant: folding the same commits in the same order gives the same state in every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from rebaser_core.ids import RequestId
from rebaser_core.record import record
from rebaser_core.response import Conflict
from rebaser_core.updates import Recompute, Update
from rebaser_core.values import Fault, Json


class Kind(StrEnum):
    """The purpose of a commit. A reader that finds an unknown kind must stop."""

    REBASE = "rebase"  # decides requests
    DVU = "dvu"  # brings derived values up to date
    ATTEMPT = "attempt"  # records attempts at a request, an update of derived values or a pull
    CHECKPOINT = "checkpoint"  # names a checkpoint, and changes no value
    CREATE = "create"  # begins the log of a change set that was created by a request
    MARK = "mark"  # protects, unprotects, closes, opens or deletes the change set
    REPLAY = "replay"  # copies the edits that the target received after the base of the branch into the branch
    GC = "gc"  # records a run of the garbage collection; only the log of `rebaser_core.blobs.garbage.GC_KEY` has it


class Outcome(StrEnum):
    """The result of deciding a request. It is final."""

    SUCCESS = "success"
    CONFLICTS = "conflicts"  # nothing was applied, because the edits of the request conflict with the change set
    ERROR = "error"  # nothing was applied, because the change set refuses the request or the request is impossible
    DEAD = "dead"  # the request cannot be processed; a copy is in the dead letters


@record
class Decision:
    """The record of a decided request in a commit. `request_id` is `@<sequence>` if the message had no readable id.

    `redrive` is the number of times that the request had been sent again from the dead letters. `attempts` is the
    number of failed tries. `result` is the blob that stores the `conflicts`. A reply that is sent again takes them from
    this blob. `result` is None if there is no blob.
    """

    sequence: int
    request_id: RequestId
    outcome: Outcome
    performed: int = 0  # the number of updates that were applied
    code: str = ""
    message: str = ""
    redrive: int = 0
    attempts: int = 0
    conflicts: tuple[Conflict, ...] = field(default=(), compare=False)  # only for the reply; not written to the log
    # The digest of the request (`content_digest`), empty if it is unknown. A header of the commit contains it.
    digest: bytes = field(default=b"", compare=False)
    position: int = 0  # for an apply, the log sequence of the branch; for a rebase, that of the target; otherwise 0
    unresolved: int = 0  # for a rebase, the number of conflicts in the branch after the rebase
    result: "BlobRef | None" = None


@record
class Applied:
    """The position up to which the requests of a change set have been decided.

    `stream` is the creation time of the stream of requests, as opaque text. `sequence` is the stream sequence of the
    last decided request.
    """

    stream: str
    sequence: int


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A reference to a checkpoint: its address, its size (bytes), and the log sequence whose state it contains.

    For a branch, `changes` is the blob with the changes of the branch at this log sequence.
    """

    address: str
    sequence: int
    size: int
    changes: "BlobRef | None" = None


DVU_ATTEMPT = 0  # `Attempt.sequence` if derived values are updated; no request has this sequence
PULL_ATTEMPT = -1  # `Attempt.sequence` if a branch is rebased automatically (a pull)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A record of how often a request, an update of derived values or a pull was tried.

    `sequence` is the sequence of the request, `DVU_ATTEMPT` or `PULL_ATTEMPT`. `count` is the number of tries after
    which the request was still undecided. `first_ms` is the Unix time of the first of these tries; for an update or a
    pull, it is the time of the last try. `deaths` is the number of tries without a recorded end: a server died, or the
    try still runs.
    """

    sequence: int
    count: int
    first_ms: int
    deaths: int = 0


@record
class Computed:
    """The result of computing one derived value: either `value`, or the `fault` if the computation failed."""

    id: str
    value: Json = None
    fault: Fault | None = None


Delta: TypeAlias = Sequence[Update] | Sequence[Computed]


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A reference to a blob that contains a part of a commit: its address and its size (bytes)."""

    address: str
    size: int


@record
class Authorship:
    """The author of a request and a message about its purpose. The sender claims both, and nothing verifies them."""

    author: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Reverts:
    """The edits that a revert takes back, which are those of the commits from log sequence `first` to `last`.

    If `request` is given, only the edits of this request are taken back, and `first` equals `last`. `of` is None if the
    commits are in the log of the change set itself. If they are in the log of its target, `of` is the target.
    """

    first: int
    last: int
    request: RequestId | None = None
    of: str | None = None


@record
class Source:
    """The source of the changes of a commit: another change set, at its log sequence `sequence`.

    `change_set` is either a branch that the commit applied, or the target onto which the commit rebased a branch. If
    `keep` is true, the applied branch stays open even if all of its edits are applied.
    """

    change_set: str
    sequence: int
    keep: bool = False


class Strategy(StrEnum):
    """The way in which a rebase treats an id that the branch and its target have defined differently."""

    RECORD = "record"  # the definition of the branch stays, and a conflict is recorded
    OURS = "ours"  # the definition of the branch stays
    THEIRS = "theirs"  # the branch takes the definition of the target


@record
class Replay:
    """The part of a `replay` commit that concerns ids whose definitions in the branch stay the same.

    For each of these ids, `bases` contains the target's definition at the new base (`Remove` if the target has none).
    For each of them that is in conflict after the commit, `conflicts` contains the definition that both sides replaced.
    The other ids of `bases` are not in conflict. If `blob` is set, both fields are in that blob, and they are empty in
    a decoded commit until the caller loads the blob.
    """

    bases: tuple[Update, ...] = ()
    conflicts: tuple[Update, ...] = ()
    strategy: Strategy = Strategy.RECORD
    blob: BlobRef | None = None


class BranchStatus(StrEnum):
    """The status of a change set. Only an open change set accepts edits."""

    OPEN = "open"
    CLOSED = "kept"  # the change set was created closed, as a tag that keeps a state
    APPLIED = "applied"  # the change set was closed because its target has all of its edits
    ABANDONED = "abandoned"  # the change set was closed without being applied
    DELETED = "deleted"  # the change set has no values, and accepts only requests to create or reopen it


@record
class Marking:
    """The change that a request makes to the protection or the status of a change set.

    Either `protected` or `status` is set. If `protected` is true, the change set refuses edits and reverts from then
    on, but branches can still be applied to it.
    """

    protected: bool | None = None
    status: BranchStatus | None = None

    @property
    def deletes(self) -> bool:
        return self.status is BranchStatus.DELETED


@record
class Collection:
    """The plan of a run of the garbage collection. It is recorded before the run carries it out.

    `candidates` is the number of blobs that no message needed. `trash`, `erase` and `restore` are the numbers of blobs
    to move to the trash, to erase from it, and to restore from it; `trash_bytes` and `erase_bytes` are their sizes.
    `began_ms` is the start of the run by the clock of NATS (Unix ms). `grace_ms` is the minimum time for which a blob
    is a candidate before it moves to the trash. `listed` is the blob that lists all candidates.
    """

    began_ms: int
    grace_ms: int
    candidates: int
    trash: int
    trash_bytes: int
    erase: int
    erase_bytes: int
    restore: int
    listed: BlobRef


@record
class BranchSummary:
    """A summary of a branch after a commit, for a header of this commit.

    `target` is empty if the change set has no target. `base` is the log sequence of the target whose edits the branch
    contains. `changes` is the number of definitions that differ from those at the base; definitions that were edited
    back since the last checkpoint are also counted. `conflicts` is the number of ids in conflict with the target.
    `origin` is the parent, which was copied at its log sequence `origin_sequence`; it is empty if the change set began
    empty. `birth` is the log sequence of the `create` commit; it is 0 in that commit itself, or if no such commit
    exists. `follows` is true if the branch takes over edits of the target without a request.
    """

    target: str
    base: int
    status: BranchStatus
    changes: int
    conflicts: int
    origin: str
    origin_sequence: int
    birth: int = 0
    follows: bool = False


@record
class TailRow:
    """A copy, in a `create` commit, of the message with the sequence `sequence` in the parent's log.

    `body` is the wire map of the copied commit in `version`, without the fields that folding does not need. It is None
    if the message was not a commit.
    """

    sequence: int
    version: int = 0
    body: dict[str, Any] | None = field(default=None, hash=False)


@record
class Origin:
    """The origin of a change set: its parent `change_set`, at the parent's log sequence `sequence`.

    `target` is the change set to which the new one can be applied: the parent, or the target of the parent. `base` is
    the log sequence of the target whose edits the new change set contains. `follows` is true if the new change set
    takes over later edits of the target without a request.

    `tail` contains copies of the messages in the parent's log after the parent's checkpoint, up to `sequence`. If
    `tail_blob` is set, they are in that blob, and `tail` of a decoded commit is empty until the caller loads the blob.
    """

    change_set: str
    sequence: int
    target: str
    base: int
    tail: tuple[TailRow, ...] = ()
    tail_blob: BlobRef | None = None
    follows: bool = False


@record
class CarriedOutcome:
    """A decision that a `create` commit copies from an earlier commit. `commit` is the log sequence of the earlier
    commit, and `at_ms` is its Unix time."""

    decision: Decision
    commit: int
    at_ms: int


@record
class Commit:
    """One entry of the log of a change set.

    `delta` contains `Update`s in a `rebase` or `replay` commit, and `Computed`s in a `dvu` commit. If `delta_blob` is
    set, the delta is in that blob, and `delta` of a decoded commit is empty until the caller loads the blob. `covers`
    is the log sequence up to which derived values are up to date; None stands for the sequence of this commit, which
    was unknown when the commit was written. `recompute` names derived values that have to be computed again although
    none of their inputs changed.

    `before` contains the definitions that this commit replaces, one for each id of its delta that existed before. It is
    None if they are unknown. If `before_blob` is set, they are in that blob, and `before` of a decoded commit is empty
    until the caller loads the blob. Folding does not need these definitions. `authors` has one item for each of
    `requests`, or is empty. `reverts` are the edits that the commit takes back. `source` is the branch that the commit
    applies, or, in a `replay` commit, the target at the new base. `settled` are the ids whose conflicts are resolved by
    the edits of the commit.
    Only `mark` commits have a `marking`, only `replay` commits a `replay`, and only `gc` commits a `collection`.

    If `status` is None, a `create` commit creates an open change set, and a `replay` commit leaves the status as it is.

    Only `create` commits have `origin` (None for a change set that begins empty) and `carried`, the outcomes that
    earlier commits of the log recorded. A `create` commit can be folded without any earlier commit of its log. Its
    `checkpoint` is the checkpoint of the parent. Later commits name the same checkpoint until the change set has its
    own. Until then, their `begin` is the sequence of the `create` commit.

    `edited`, `branch`, `protected` and `blobs` are only in headers, so a decoded commit lacks them. `edited` is the
    sequence of the newest commit with edits (None: this one; 0: there is none). `branch` summarizes the branch after
    this commit. `protected` is true if the change set is protected after this commit. `blobs` are the addresses of all
    blobs that are needed to read the log from this message on.
    """

    id: str
    previous: int
    kind: Kind
    at_ms: int
    owner: str
    applied: Applied | None
    covers: int | None
    requests: tuple[Decision, ...] = ()
    delta: Delta = ()
    delta_blob: BlobRef | None = None
    checkpoint: CheckpointRef | None = None
    attempt: Attempt | None = None
    forget_before_ms: int = 0  # outcomes recorded before this Unix time (ms) are no longer kept
    recompute: tuple[Recompute, ...] = ()
    debt: int = field(default=0, compare=False)  # number of due roots and recomputes; also in a header
    sequence: int = field(default=0, compare=False)  # log sequence of this commit; 0 if unknown
    # Functions that definitions name, but that the server that wrote this commit does not have. They are only in a
    # header. If the server of the sweeper has one of these functions, the sweeper makes an owner compute the values.
    unknown: tuple[str, ...] = field(default=(), compare=False)
    before: tuple[Update, ...] | None = None
    before_blob: BlobRef | None = None
    authors: tuple[Authorship, ...] = ()
    reverts: Reverts | None = None
    origin: Origin | None = None
    status: BranchStatus | None = None
    carried: tuple[CarriedOutcome, ...] = ()
    begin: int = 0
    source: Source | None = None
    marking: Marking | None = None
    settled: tuple[str, ...] = ()
    replay: Replay | None = None
    collection: Collection | None = None
    edited: int | None = field(default=None, compare=False, repr=False)
    branch: BranchSummary | None = field(default=None, compare=False, repr=False)
    protected: bool = field(default=False, compare=False, repr=False)
    blobs: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def has_edits(self) -> bool:
        """Whether this commit defines or removes values. This is also correct if the delta has not been loaded."""
        return self.kind in (Kind.REBASE, Kind.REPLAY) and bool(self.delta or self.delta_blob)

    @property
    def folded_blobs(self) -> tuple[BlobRef, ...]:
        """The blobs that a reader has to load before it can fold this commit."""
        replay = None if self.replay is None else self.replay.blob
        return tuple([blob for blob in (self.delta_blob, replay) if blob is not None])

    @property
    def follows(self) -> int:
        """The log sequence of the commit after which this one is folded; for a `create` commit, the sequence in the
        parent's log at which the change set was created."""
        if self.kind is not Kind.CREATE:
            return self.previous
        return 0 if self.origin is None else self.origin.sequence

    @property
    def created_by(self) -> int:
        """The sequence of the `create` commit from which a reader begins in order to get the state after this commit.

        It is 0 if the reader begins from a checkpoint of the change set itself.
        """
        return self.sequence if self.kind is Kind.CREATE else self.begin
