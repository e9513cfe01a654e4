"""The entry of a change set's log: the only way its state changes.

Invariant: a commit is complete in itself. Folding the same commits in the same order gives the same state, anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from rebaser_core.ids import RequestId
from rebaser_core.updates import Recompute, Update
from rebaser_core.values import Fault, Json


class Kind(StrEnum):
    """Why a commit was written. A reader that meets another word must not go on."""

    REBASE = "rebase"  # requests were decided
    DVU = "dvu"  # derived values were brought up to date
    ATTEMPT = "attempt"  # a request, or a DVU, is being tried again; the count bounds it
    CHECKPOINT = "checkpoint"  # nothing changed; names a checkpoint


class Outcome(StrEnum):
    """How a request was decided, for ever."""

    SUCCESS = "success"
    CONFLICTS = "conflicts"  # nothing was applied: edits taken from another change set do not fit here
    ERROR = "error"  # nothing was applied: the request itself asks for what cannot be
    DEAD = "dead"  # cannot be processed; a copy is in the dead letters


@dataclass(frozen=True, slots=True)
class Decision:
    """One request as a commit records it. `request_id` is `@<sequence>` where the message gave no readable one.

    `redrive`: the how-manieth return from the dead letters this was, 0 for none. `attempts`: tries that failed before.
    """

    sequence: int
    request_id: RequestId
    outcome: Outcome
    performed: int = 0  # updates applied
    code: str = ""
    message: str = ""
    redrive: int = 0
    attempts: int = 0
    gone: tuple[str, ...] = field(default=(), compare=False)  # ids in conflict, for the first answer; not in the log
    # Of what was asked for (`rebaser_core.content_digest`), empty if that is not known; in a header, and may be missed.
    digest: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Applied:
    """How far the request stream is decided: its creation time (an opaque word) and the highest decided sequence."""

    stream: str
    sequence: int


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """Where the newest checkpoint is, and the log sequence it stands for."""

    address: str
    sequence: int
    size: int


DVU_ATTEMPT = 0  # the `sequence` of an `Attempt` at the DVU: no request has it


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request that could not be decided yet: how often it was held back, and when first (Unix ms).

    `deaths`: tries of which no end is known. The one at work now is one of them; its end takes it back. For a DVU
    `first_ms` is when it was tried last.
    """

    sequence: int
    count: int
    first_ms: int
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """A derived value as a DVU found it: `value`, or `fault`."""

    id: str
    value: Json = None
    fault: Fault | None = None


Delta: TypeAlias = Sequence[Update] | Sequence[Computed]


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A delta that was too large to stand in its commit."""

    address: str
    size: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One log entry.

    `delta` holds `Update`s in a `rebase`, `Computed` in a `dvu`. If `delta_blob` is set the delta is there, and a
    commit that was only decoded has an empty `delta` until somebody loads it. `covers` is the log sequence up to
    which derived values are true; None says "this commit's own", which its writer could not know. `recompute`: derived
    values that are owed from here on, though nothing they rest on changed.
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
    debt: int = field(default=0, compare=False)  # what is owed after it; a header repeats it for the sweeper
    sequence: int = field(default=0, compare=False)  # its log sequence, where a reader knows it
    # Functions that values are derived by and its writer has not got: in a header only, for the sweeper of who has.
    unknown: tuple[str, ...] = field(default=(), compare=False)
