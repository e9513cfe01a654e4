"""Defines a queued request together with the data that is needed to decide it. The owner of the change set reads this
data from logs and blobs."""

from rebaser_core.branches.branch import Action, Fork
from rebaser_core.branches.merge import Merged, PatchEntry
from rebaser_core.checkpoint.chain import Chain
from rebaser_core.commit import BlobRef, Reverts, Source
from rebaser_core.decisions.apply import Offer
from rebaser_core.decisions.replay import Replayed, Theirs
from rebaser_core.errors import RebaserError
from rebaser_core.ids import RequestId
from rebaser_core.record import record
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute, Update


@record
class Restored:
    """The `state` of a change set before its deletion, and the parts (`chain`) of the newest checkpoint before the
    deletion."""

    state: ChangeSetState
    chain: Chain


@record
class QueuedRequest:
    """A queued request as it was read, with either its `updates` or the `error` that prevents its processing.

    `request_id` is `@<sequence>` if the message has no readable id; this distinguishes such requests from each other.
    `recompute` specifies derived values to compute again after the updates. `redrive` and `attempts` have the same
    meaning as in `Decision`. If the request was sent again from the dead letters, `dead_at_ms` is the Unix time at
    which it had been moved there. `blob` is the blob that contains the updates, if they are not in the message.
    `digest` is the result of `content_digest`, or empty if unknown. `author`, `message`, `expect_at` and `action` have
    the same meaning as in `EnqueueUpdatesRequest`.

    A request with an action is decided alone. It has either the data that the owner read for the action, or a
    `refusal`. Unlike an `error`, a refusal does not produce a dead letter. A `Create` has a `fork`. A revert has the
    `patch` that undoes the edits, and an `Apply` has an `offer` and its patch. `merged` is the result of merging the
    patch into the state that is passed to `decide`. A `Rebase` has `theirs`, the changes of the target; `replayed` is
    the result of comparing them with that state. A `Marking` that restores a deleted change set has `restored`. `moved`
    is the result of `defined_after` for `expect_at`, or None if it has not been computed.
    """

    sequence: int
    request_id: RequestId
    updates: tuple[Update, ...] = ()
    from_change_set: str | None = None
    error: RebaserError | None = None
    redrive: int = 0
    dead_at_ms: int = 0
    attempts: int = 0
    recompute: Recompute | None = None
    blob: BlobRef | None = None
    digest: bytes = b""
    author: str = ""
    message: str = ""
    expect_at: int | None = None
    action: Action | None = None
    fork: Fork | None = None
    offer: Offer | None = None
    patch: tuple[PatchEntry, ...] = ()
    merged: Merged | None = None
    restored: Restored | None = None
    theirs: Theirs | None = None
    replayed: Replayed | None = None
    refusal: RebaserError | None = None
    moved: frozenset[str] | None = None

    @property
    def touched(self) -> tuple[str, ...]:
        """The ids of the values that the request would change."""
        return tuple(dict.fromkeys([one.id for one in self.patch or self.updates]))

    @property
    def source(self) -> Source | None:
        """The change set from which the request takes changes, with its position, or None if there is no such change
        set."""
        taken = self.offer or self.replayed
        return None if taken is None else taken.source

    @property
    def edits(self) -> bool:
        """Whether the request contains edits or is a revert. An apply of a branch does not count."""
        return bool(self.updates) or type(self.action) is Reverts
