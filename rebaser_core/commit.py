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

    REBASE = "rebase"  # decides requests; without any, it only makes values due (see `rebaser.change_set.healing`)
    DVU = "dvu"  # brings derived values up to date
    ATTEMPT = "attempt"  # records attempts at a request, an update of derived values or a pull
    CHECKPOINT = "checkpoint"  # refers to a new checkpoint, and changes no value
    CREATE = "create"  # begins the log of a change set that was created by a request
    MARK = "mark"  # protects, unprotects, closes, opens or deletes the change set
    REPLAY = "replay"  # copies into a branch the edits that its target has received since the base of the branch
    GC = "gc"  # records a garbage collection; found only in the log of `rebaser_core.blobs.garbage.GC_KEY`


class Outcome(StrEnum):
    """The result of deciding a request. It is final."""

    SUCCESS = "success"
    CONFLICTS = "conflicts"  # nothing was applied, because the edits of the request conflict with the change set
    ERROR = "error"  # nothing was applied, because the change set refuses the request or the request is impossible
    DEAD = "dead"  # the request cannot be processed; a copy is in the dead letters


@record
class Decision:
    """The record of a decided request in a commit. `request_id` is `@<sequence>` if the message had no readable id.

    `redrive` is how often the request had been sent again from the dead letters. `attempts` is the number of failed
    attempts. `result` refers to the blob that stores `conflicts`, or is None if there is no such blob. If the reply has
    to be sent again, its conflicts are read from this blob.
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
    # The digest of the request (see `content_digest`), or empty if unknown. It is stored in a header of the commit.
    digest: bytes = field(default=b"", compare=False)
    position: int = 0  # for an apply, the branch's log sequence; for a rebase, the target's; otherwise 0
    unresolved: int = 0  # for a rebase, the number of conflicts in the branch after the rebase
    result: "BlobRef | None" = None


@record
class Applied:
    """The position up to which the requests of a change set have been decided.

    `stream` is the request stream's creation time, as opaque text. `sequence` is the stream sequence of the last
    decided request.
    """

    stream: str
    sequence: int


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A reference to a checkpoint: its address, its size (bytes), and the log sequence at which it captures the state.

    For a branch, `changes` refers to the blob that contains the branch's changes at this log sequence.
    """

    address: str
    sequence: int
    size: int
    changes: "BlobRef | None" = None


DVU_ATTEMPT = 0  # `Attempt.sequence` for an update of derived values; no request has this sequence
PULL_ATTEMPT = -1  # `Attempt.sequence` for a pull, which is an automatic rebase of a branch


@dataclass(frozen=True, slots=True)
class Attempt:
    """A record of how often a request, an update of derived values or a pull has been attempted.

    `sequence` is the sequence of the request, `DVU_ATTEMPT` or `PULL_ATTEMPT`. `count` is the number of attempts after
    which the request was still undecided. `first_ms` is the Unix time of the first of these attempts or, for an update
    or a pull, of the last one. `deaths` is the number of attempts without a recorded end, either because the server
    died or because the attempt is still running.
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
    """The edits that a revert undoes: those of the commits from log sequence `first` to `last`.

    If `request` is given, only the edits of this request are undone, and `first` equals `last`. If the commits are in
    the log of the change set's target, `of` is the target; if they are in its own log, `of` is None.
    """

    first: int
    last: int
    request: RequestId | None = None
    of: str | None = None


@record
class Source:
    """The change set from which a commit takes its changes, in its state at log sequence `sequence` of its own log.

    `change_set` is either a branch that the commit applied, or the target onto which the commit rebased a branch. If
    `keep` is true, the applied branch stays open even if all of its edits are applied.
    """

    change_set: str
    sequence: int
    keep: bool = False


class Strategy(StrEnum):
    """How a rebase treats an id that the branch and its target have defined differently."""

    RECORD = "record"  # the definition of the branch stays, and a conflict is recorded
    OURS = "ours"  # the definition of the branch stays
    THEIRS = "theirs"  # the branch takes the definition of the target


@record
class Replay:
    """The part of a `replay` commit that concerns ids whose definitions in the branch stay the same.

    For each of these ids, `bases` contains the target's definition at the new base (`Remove` if the target has none).
    For each id that is in conflict after the commit, `conflicts` contains the definition that both sides replaced; the
    other ids are not in conflict. If `blob` is set, it refers to a blob that stores `bases` and `conflicts`. In a
    decoded commit, both are then empty until the caller loads the blob.
    """

    bases: tuple[Update, ...] = ()
    conflicts: tuple[Update, ...] = ()
    strategy: Strategy = Strategy.RECORD
    blob: BlobRef | None = None


class BranchStatus(StrEnum):
    """The status of a change set. Only an open change set accepts edits."""

    OPEN = "open"
    CLOSED = "kept"  # the change set was created closed, as a tag that keeps a state
    APPLIED = "applied"  # the change set was closed because its target contains all of its edits
    ABANDONED = "abandoned"  # the change set was closed without being applied
    DELETED = "deleted"  # the change set has no values, and accepts only a request to create it again or to reopen it


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
    """The plan of a garbage collection, which is recorded before it is carried out.

    `candidates` is the number of blobs that no message refers to. `trash`, `erase` and `restore` are the numbers of
    blobs to move to the trash, to erase from it, and to restore from it; `trash_bytes` and `erase_bytes` are their
    sizes. `began_ms` is when the collection began, by the NATS server's clock (Unix ms). `grace_ms` is the minimum time
    for which a blob is a candidate before it moves to the trash. `listed` refers to the blob that lists all candidates.
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
    """A summary of a branch after a commit, which the commit stores in a header.

    `target` is empty if the change set has no target. `base` is the log sequence up to which the branch contains the
    edits of the target. `changes` is the number of definitions that differ from those at the base; it also counts
    definitions that were changed back after the last checkpoint. `conflicts` is the number of ids in conflict with the
    target. `origin` is the parent, which was copied as of its log sequence `origin_sequence`, or empty if the change
    set began without values. `birth` is the log sequence of the `create` commit; it is 0 in that commit itself, or if
    no such commit exists. `follows` is true if the branch takes over edits of the target automatically.
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
    """A copy of the message with the sequence `sequence` in the parent's log, which a `create` commit contains.

    `body` is the wire map of the copied commit in version `version`, reduced to the fields that folding needs. It is
    None if the message was not a commit.
    """

    sequence: int
    version: int = 0
    body: dict[str, Any] | None = field(default=None, hash=False)


@record
class Origin:
    """The origin of a change set: its parent `change_set`, at the parent's log sequence `sequence`.

    `target` is the change set to which the new change set can be applied: either the parent or the parent's target.
    `base` is the log sequence up to which the new change set contains the edits of its target. `follows` is true if the
    new change set automatically takes over later edits of its target.

    `tail` contains copies of the messages in the parent's log after its checkpoint, up to `sequence`. If `tail_blob` is
    set, they are stored in that blob, and `tail` of a decoded commit is empty until the caller loads it.
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
    set, the delta is stored in that blob, and `delta` of a decoded commit is empty until the caller loads it. `covers`
    is the log sequence up to which derived values are up to date; None stands for the sequence of this commit, which
    was unknown when the commit was written. `recompute` specifies derived values that have to be computed again
    although none of their inputs changed.

    `before` contains the definitions that this commit replaces, one for each id of its delta that existed before. It is
    None if these definitions are unknown. If `before_blob` is set, they are stored in that blob, and `before` of a
    decoded commit is empty until the caller loads it. Folding does not need these definitions. `authors` has one item
    for each of `requests`, or is empty. `reverts` specifies the edits that the commit reverts. `source` is the branch
    that the commit applies, or, in a `replay` commit, the target at the new base. `settled` are the ids whose conflicts
    are resolved by the edits of the commit. Only `mark` commits have a `marking`, only `replay` commits a `replay`, and
    only `gc` commits a `collection`.

    If `status` is None, a `create` commit creates an open change set, and a `replay` commit leaves the status as it is.

    Only `create` commits have `origin` (None for a change set that begins empty) and `carried`, the outcomes that
    earlier commits of the log recorded. A `create` commit can be folded without any earlier commit of its log. Its
    `checkpoint` is the checkpoint of the parent. Later commits refer to the same checkpoint until the change set has
    one of its own. Until then, their `begin` is the sequence of the `create` commit.

    `edited`, `branch`, `protected` and `blobs` are stored only in headers, so decoding a payload does not set them.
    `edited` is the sequence of the newest commit with edits: None stands for this commit, and 0 means that there is no
    such commit. `branch` summarizes the branch after this commit, and `protected` is whether it is protected then.
    `blobs` are the addresses of all blobs that a reader needs to read the log from this commit on. A decoded commit
    has the `size` of its payload (bytes), and its header `traceparent` (empty without one).
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
    debt: int = field(default=0, compare=False)  # number of due roots and recomputes; also stored in a header
    sequence: int = field(default=0, compare=False)  # log sequence of this commit; 0 if unknown
    # Functions that definitions use but that the server that wrote this commit lacks. They are stored only in a header.
    # A sweeper whose server has one of these functions makes an owner compute the values.
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
    size: int = field(default=0, compare=False, repr=False)
    traceparent: str = field(default="", compare=False, repr=False)

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
        """The sequence of the `create` commit from which a reader starts in order to rebuild the state after this
        commit.

        It is 0 if the reader starts from a checkpoint of the change set itself.
        """
        return self.sequence if self.kind is Kind.CREATE else self.begin
