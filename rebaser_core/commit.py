"""Commits: the entries of a change set's log, and the only way its state changes.

Invariant: a commit needs nothing else to be folded. Folding the same commits in the same order gives the same state in
every process.
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
    """Why a commit was written. A reader that meets an unknown kind must stop."""

    REBASE = "rebase"  # decides requests
    DVU = "dvu"  # brings derived values up to date
    ATTEMPT = "attempt"  # records attempts at a request, a DVU or a pull, whose number is bounded
    CHECKPOINT = "checkpoint"  # changes no value; names a checkpoint
    CREATE = "create"  # begins the log of a change set that was created by a request
    MARK = "mark"  # changes no value; protects, unprotects, closes or opens the change set
    REPLAY = "replay"  # brings the changes that the target made since the base into the branch
    GC = "gc"  # records a run of the garbage collection, in the log of `rebaser_core.blobs.garbage.GC_KEY`


class Outcome(StrEnum):
    """How a request was decided. The outcome is final."""

    SUCCESS = "success"
    CONFLICTS = "conflicts"  # nothing was applied: the edits, a revert or a branch conflict with this change set
    ERROR = "error"  # nothing was applied: the change set refuses the request, or it is impossible
    DEAD = "dead"  # the request cannot be processed; a copy is in the dead letters


@record
class Decision:
    """One request as a commit records it. `request_id` is `@<sequence>` if the message gave no readable id.

    `redrive` tells how many times the request had been redriven from the dead letters. `attempts` tells how many tries
    failed. `result` is the blob with the `conflicts` of the reply, so that a repeated reply also has them. It is None
    if there is no blob.
    """

    sequence: int
    request_id: RequestId
    outcome: Outcome
    performed: int = 0  # updates applied
    code: str = ""
    message: str = ""
    redrive: int = 0
    attempts: int = 0
    conflicts: tuple[Conflict, ...] = field(default=(), compare=False)  # for the reply; the recorded row lacks them
    # `content_digest` of the request, empty if it is unknown. It is sent in a header, which readers may ignore.
    digest: bytes = field(default=b"", compare=False)
    position: int = 0  # of an apply: log sequence of the branch; of a rebase: of the target; otherwise 0
    unresolved: int = 0  # of a rebase: how many conflicts the branch has afterwards
    result: "BlobRef | None" = None


@record
class Applied:
    """How far the request stream has been decided.

    `stream` is the creation time of the stream, an opaque text. `sequence` is the highest decided sequence.
    """

    stream: str
    sequence: int


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """Address and size (bytes) of the newest checkpoint, and the log sequence whose state it holds.

    `changes`, in branches: the blob with the branch's changes as of the checkpoint (`rebaser_core.branches.branch`).
    """

    address: str
    sequence: int
    size: int
    changes: "BlobRef | None" = None


DVU_ATTEMPT = 0  # `Attempt.sequence` of attempts at the DVU; no request has this sequence
PULL_ATTEMPT = -1  # `Attempt.sequence` of attempts at an automatic pull


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request that could not be decided yet: how often it was held (`count`), and when it was held first (Unix ms).

    `deaths` is the number of tries whose end the log has not recorded. A try in progress is counted until it ends and a
    commit subtracts it. For a DVU and a pull, `first_ms` is the time of the last try.
    """

    sequence: int
    count: int
    first_ms: int
    deaths: int = 0


@record
class Computed:
    """The result of a DVU for one derived value: `value`, or `fault`."""

    id: str
    value: Json = None
    fault: Fault | None = None


Delta: TypeAlias = Sequence[Update] | Sequence[Computed]


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Address and size (bytes) of a part of a commit that was too large for its message."""

    address: str
    size: int


@record
class Authorship:
    """Who sent a request, and why. Both are unverified claims of the sender."""

    author: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Reverts:
    """The edits that a commit takes back: those of the commits from log sequence `first` to `last`.

    `request`: if given, only the edits of this request in the single commit `first`. `of` is the target of the branch,
    if the commits are in the log of the target. It is None if they are in the log of the change set itself.
    """

    first: int
    last: int
    request: RequestId | None = None
    of: str | None = None


@record
class Source:
    """The change set `change_set` as of log sequence `sequence`, from which a commit took its changes.

    It is either a branch whose changes the commit applied, or a target whose commits the branch replayed. `keep`, only
    for an apply: the branch stays open, even if all of its edits are applied.
    """

    change_set: str
    sequence: int
    keep: bool = False


class Strategy(StrEnum):
    """How a replay treats an id that the branch and its target defined differently."""

    RECORD = "record"  # the definition of the branch stays, and a conflict is recorded
    OURS = "ours"  # the definition of the branch stays
    THEIRS = "theirs"  # the branch takes the definition of the target


@record
class Replay:
    """The part of a `replay` commit about ids that stay changed in the branch.

    `bases`: their definitions in the target as of the new base (`Remove` if it has none). `conflicts`: for those of
    these ids that are in conflict from now on, the common definition from which both sides departed. The other ids of
    `bases` are not in conflict any more. If `blob` is set, `bases` and `conflicts` are in that blob, and both are empty
    in a decoded commit until the caller loads the blob.
    """

    bases: tuple[Update, ...] = ()
    conflicts: tuple[Update, ...] = ()
    strategy: Strategy = Strategy.RECORD
    blob: BlobRef | None = None


class BranchStatus(StrEnum):
    """The status of a change set. Only an open one accepts edits."""

    OPEN = "open"
    CLOSED = "kept"  # a tag: created closed, to keep a state; the next two are for a later close
    APPLIED = "applied"  # the target has all edits of the branch
    ABANDONED = "abandoned"
    DELETED = "deleted"  # it has no values, and accepts only requests to create it anew or to bring it back


@record
class Marking:
    """The mark that a request gives a change set: either `protected`, or `status`.

    `protected` tells whether the change set refuses edits other than applied branches.
    """

    protected: bool | None = None
    status: BranchStatus | None = None

    @property
    def deletes(self) -> bool:
        return self.status is BranchStatus.DELETED


@record
class Collection:
    """A run of the garbage collection: how many blobs no message needed (`candidates`), and how many it was about
    to move to the trash, to erase, and to bring back. The commit is appended before the run does any of this.

    `trash_bytes`, `erase_bytes`: their sizes. `began_ms` is the time at which the run began, by the clock of NATS (Unix
    ms). `grace_ms` is the minimum time for which a blob is a candidate before it moves to the trash. `listed` is the
    blob with all candidates.
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
    """The summary, in a header of a commit, of the branch after that commit.

    `target` is empty if the change set has none. `changes` tells how many definitions differ from those at the base, or
    were edited back to them since the last checkpoint. `conflicts` tells how many ids are in conflict with the target.
    `origin` is the parent, as of log sequence `origin_sequence`; empty if the change set began empty. `birth` is the
    sequence of the `create` commit, 0 if this is that commit, or if there is none. `follows` tells whether the owner of
    the branch pulls the changes of the target without a request.
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
    """A message of the parent's log that a `create` commit contains: its sequence in that log, and its content.

    `body` is the wire map of a commit in `version`, without the fields that folding does not need. It is None if the
    message was not a commit.
    """

    sequence: int
    version: int = 0
    body: dict[str, Any] | None = field(default=None, hash=False)


@record
class Origin:
    """The origin of a change set: its parent `change_set` as of log sequence `sequence`.

    `target`: the change set that this one branches from, and can be applied to: the parent, or the target of the
    parent. `base` is the log sequence of the target up to which its commits are contained in this change set. `follows`
    tells whether its owner pulls the changes of the target without a request.

    `tail` are the copies of the messages in the parent's log between the parent's checkpoint and `sequence`. If
    `tail_blob` is set, the messages are in that blob, and `tail` of a decoded commit is empty until the caller loads
    the blob.
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
    """An outcome that the log of a change set recorded before the change set was created."""

    decision: Decision
    commit: int
    at_ms: int


@record
class Commit:
    """One log entry.

    `delta` holds `Update`s in a `rebase` or `replay` commit and `Computed`s in a `dvu` commit. If `delta_blob` is set,
    the delta is in that blob, and `delta` of a decoded commit is empty until the caller loads the blob. `covers` is the
    log sequence up to which derived values are correct; None stands for the sequence of the commit itself, which its
    writer could not know. `recompute`: derived values to be computed again although none of their inputs changed.

    `before` are the definitions that this commit replaces, one for each id of its delta that existed before. None if
    they are unknown. If `before_blob` is set, they are in that blob, and `before` of a decoded commit is empty until
    the caller loads the blob. Folding needs neither field. `authors`: one for each of `requests`, or none at all.
    `reverts` are the edits that the commit takes back. `source` is the branch whose changes the commit applies; of a
    `replay` commit, the target as of the new base. `settled` are the ids whose conflicts the edits of the commit
    resolved. Only `mark` commits have a `marking`, only `replay` commits a `replay`, and only `gc` commits a
    `collection`.

    `status`: in a `create` commit, None stands for open; in a `replay` commit, None means that the status stays as it
    is.

    Fields of a `create` commit: `origin` (None for a change set that begins empty), and `carried`, the outcomes that
    the log recorded before this commit. A `create` commit can be folded without any earlier commit of its log. Its
    `checkpoint` is that of the parent. Later commits name the same checkpoint until the change set has its own. Until
    then, their `begin` is the sequence of the `create` commit.

    `edited`, `branch`, `protected` and `blobs` are only in headers, so a decoded commit lacks them. `edited`: the
    sequence of the newest commit with edits (None: this one; 0: there is none). `branch` is the branch after this
    commit. `protected` tells whether the change set is protected after it. `blobs` are the addresses of all blobs that
    the log needs from this message on.
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
    debt: int = field(default=0, compare=False)  # roots and recomputes due after this commit; a header repeats it
    sequence: int = field(default=0, compare=False)  # log sequence of this commit, if the reader knows it
    # Functions that definitions name, and that the writer of this commit lacks. Only a header lists them, for the
    # sweeper of a server that has these functions.
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
        """Whether this commit defines or removes values. The delta need not be loaded."""
        return self.kind in (Kind.REBASE, Kind.REPLAY) and bool(self.delta or self.delta_blob)

    @property
    def folded_blobs(self) -> tuple[BlobRef, ...]:
        """The blobs whose content a reader needs to fold this commit."""
        replay = None if self.replay is None else self.replay.blob
        return tuple([blob for blob in (self.delta_blob, replay) if blob is not None])

    @property
    def follows(self) -> int:
        """The log sequence of the state into which this commit is folded; of a `create` commit, that of its parent."""
        if self.kind is not Kind.CREATE:
            return self.previous
        return 0 if self.origin is None else self.origin.sequence

    @property
    def created_by(self) -> int:
        """The sequence of the `create` commit at which a reader of the state after this commit has to begin. It is 0 if
        the reader begins at a checkpoint of the change set itself."""
        return self.sequence if self.kind is Kind.CREATE else self.begin
