"""Decides queued requests with a pure function, which computes the decisions and the delta of one commit from the
folded state and the requests.

Invariant: a request is decided once. If its id has a recorded outcome, this outcome is the reply. If a request has no
recorded outcome although its sequence is at or below `applied`, an earlier owner skipped the request. It then goes to
the dead letters, because applying it now would change the order.

There is one exception: a request with the outcome `dead` is decided again if it is sent again from the dead letters.
Its `redrive` is then higher than the recorded `redrive`. If a client merely sends a request with the same id again, the
reply is still `dead`. Any sender can set the header that contains `redrive`, but all that this can achieve is that a
dead request is decided again.
"""

from collections.abc import Sequence
from dataclasses import replace

from rebaser_core.branches.branch import Apply, Fork, Rebase
from rebaser_core.branches.merge import Merged
from rebaser_core.commit import (
    Applied,
    Authorship,
    BlobRef,
    BranchStatus,
    Decision,
    Marking,
    Outcome,
    Reverts,
    Source,
)
from rebaser_core.decisions.apply import check_target
from rebaser_core.decisions.deletion import refuse_deleted
from rebaser_core.decisions.queued_request import QueuedRequest, Restored
from rebaser_core.decisions.replay import Replayed, refuse_rebase
from rebaser_core.encoding.payload import CBOR, dumps
from rebaser_core.errors import REQUEST_ID_REUSED, UnprocessableError
from rebaser_core.ids import RequestId, first_of
from rebaser_core.record import record
from rebaser_core.response import Conflict, Sides
from rebaser_core.state.change_set import ChangeSetState, RecordedOutcome
from rebaser_core.updates import Derive, Recompute, Remove, Update

MAX_MESSAGE = 1000  # maximum characters of a recorded error message
MAX_CONFLICTS = 100  # maximum number of conflicts in a reply; more might not fit in the message
MAX_SIDES_BYTES = 64 * 1024  # maximum bytes of all definitions in the conflicts of a reply


@record
class DecidedBatch:
    """The content of the next commit, and the replies to the requests. If there are no decisions, no commit is written.

    `decisions`, `delta`, `applied`, `recompute`, `authors`, `reverts`, `source`, `settled` and `marking` are fields of
    the commit. `delta_blob` is a blob that already contains the delta; it is set only if the batch has a single
    request. `fork` describes the parent if the commit creates a change set. `restored` is the state before the deletion
    if the commit restores a deleted change set. `replayed` is the result of the rebase if the commit is a `replay`.

    `answers` contains, for each request in order, its decision and the log sequence of the commit that records this
    decision; None stands for the commit that is yet to be written. `skipped` is the number of requests that an earlier
    owner skipped.
    """

    decisions: tuple[Decision, ...]
    delta: tuple[Update, ...]
    answers: tuple[tuple[Decision, int | None], ...]
    applied: Applied
    skipped: int = 0
    recompute: tuple[Recompute, ...] = ()
    delta_blob: BlobRef | None = None
    authors: tuple[Authorship, ...] = ()
    settled: tuple[str, ...] = ()
    reverts: Reverts | None = None
    fork: Fork | None = None
    source: Source | None = None
    marking: Marking | None = None
    restored: Restored | None = None
    replayed: Replayed | None = None


# A lookup of an enum member takes 0.1 µs in Python 3.11.
_SUCCESS, _DEAD, _OPEN = Outcome.SUCCESS, Outcome.DEAD, BranchStatus.OPEN


def decided_through(state: ChangeSetState, stream: str, last_sequence: int) -> int:
    """Return the highest decided sequence in the request stream, or 0 if a new epoch has begun.

    `stream` is the creation time of the stream, and `last_sequence` the sequence of its newest message. A new epoch
    begins if the stream's creation time differs from the one recorded in `state`. A new epoch also begins if
    `last_sequence` is below the highest decided sequence, which shows that the stream was restored from an older
    backup. Sequences of different epochs cannot be compared.
    """
    if state.applied is None or state.applied.stream != stream or last_sequence < state.applied.sequence:
        return 0
    return state.applied.sequence


def decide(state: ChangeSetState, applied: Applied, requests: Sequence[QueuedRequest]) -> DecidedBatch:
    """Decide `requests` in order, and return the content of their commit. `applied` is the current request stream with
    its highest decided sequence."""
    decisions: list[Decision] = []
    authors: list[Authorship] = []
    delta: list[Update] = []
    answers: list[tuple[Decision, int | None]] = []
    decided_here: dict[RequestId, Decision] = {}
    recompute: dict[Recompute, None] = {}
    settled: dict[str, None] = {}
    pending = _PendingState(state, delta)
    highest, skipped = applied.sequence, 0
    for request in requests:
        earlier = decided_here.get(request.request_id)
        if earlier is not None and not _decided_anew(earlier, request.sequence, request.redrive, applied):
            answers.append((_repeated(earlier, request), None))
            continue
        recorded = recorded_outcome(state, applied, request.request_id, request.sequence, request.redrive)
        if earlier is None and recorded is not None:
            answers.append((_repeated(recorded.decision, request), recorded.commit))
            continue
        if request.sequence <= applied.sequence:
            skipped += 1
            decision = Decision(
                request.sequence,
                request.request_id,
                _DEAD,
                0,
                "skipped",
                "an earlier server skipped this request, so it was not applied: send it again",
                request.redrive,
                digest=request.digest,
            )
        else:
            decision = _decide_one(pending, request, delta)
            if decision.outcome is _SUCCESS:
                if request.recompute is not None:
                    recompute[request.recompute] = None
                if request.expect_at is not None and request.action is None:
                    settled.update(dict.fromkeys(_in_conflict(state, request)))
            if request.sequence > highest:  # noqa: PLR1730 - `max` takes four times as long
                highest = request.sequence
        decisions.append(decision)
        if request.author or request.message:
            authors += [Authorship()] * (len(decisions) - 1 - len(authors))  # the earlier requests have no author
            authors.append(Authorship(request.author, request.message))
        decided_here[request.request_id] = decision
        answers.append((decision, None))
    blob = requests[0].blob if len(requests) == 1 and delta else None
    if authors:
        authors += [Authorship()] * (len(decisions) - len(authors))
    batch = DecidedBatch(
        tuple(decisions),
        tuple(delta),
        tuple(answers),
        Applied(applied.stream, highest),
        skipped,
        tuple(recompute),
        blob,
        tuple(authors),
        tuple(settled),
    )
    if len(decisions) != 1 or requests[0].action is None or decisions[0].outcome is not _SUCCESS:
        return batch
    return _with_action(batch, requests[0])


def _with_action(batch: DecidedBatch, request: QueuedRequest) -> DecidedBatch:
    """Return `batch` with the fields that only a successful request with an action has."""
    action = request.action
    return replace(
        batch,
        reverts=action if isinstance(action, Reverts) else None,
        fork=request.fork,
        source=request.source,
        marking=action if isinstance(action, Marking) else None,
        restored=request.restored,
        replayed=request.replayed,
    )


def _in_conflict(state: ChangeSetState, request: QueuedRequest) -> list[str]:
    """Return the ids of `request` whose conflicts its edits resolve, which are all its ids that are in conflict.

    The request must have `expect_at`, which shows that its author has seen these conflicts.
    """
    conflicts = {} if state.branch is None else state.branch.conflicts
    return [id_ for id_ in request.touched if id_ in conflicts] if conflicts else []


def recorded_outcome(
    state: ChangeSetState, applied: Applied, request_id: RequestId, sequence: int, redrive: int
) -> RecordedOutcome | None:
    """Return the recorded outcome of a request, which is then its reply, or None if the request still has to be
    decided."""
    recorded = state.recorded(request_id)
    if recorded is None or _decided_anew(recorded.decision, sequence, redrive, applied):
        return None
    return recorded


def _repeated(decision: Decision, request: QueuedRequest) -> Decision:
    """Return the reply to a request whose id has already been used by a decided request.

    If both requests have the same content, the reply is the earlier decision. Otherwise it is `dead`. No commit records
    this `dead` reply, so the id keeps its recorded outcome. As long as the outcome is recorded, each of the two
    requests gets the same reply whenever it is sent again.
    """
    if not (decision.digest and request.digest) or decision.digest == request.digest:
        return decision
    message = "a different request with this id was decided before, so this request was not applied: use a new id"
    return Decision(request.sequence, request.request_id, _DEAD, 0, REQUEST_ID_REUSED, message, redrive=request.redrive)


def _decided_anew(decision: Decision, sequence: int, redrive: int, applied: Applied) -> bool:
    return decision.outcome is _DEAD and redrive > decision.redrive and sequence > applied.sequence


def _decide_one(pending: "_PendingState", request: QueuedRequest, delta: list[Update]) -> Decision:
    outcome, code, message = _SUCCESS, "", ""
    updates: Sequence[Update] = request.updates
    conflicts: tuple[Conflict, ...] = ()
    if request.error is not None:
        outcome, code, message = _DEAD, request.error.code, request.error.message
    elif request.redrive and request.dead_at_ms < pending.born_ms:
        outcome, code = _DEAD, "deleted"
        message = "the request is from before this change set was created again: send it under a new id"
    elif (request.action is not None or pending.guarded) and (refusal := pending.refusal(request)) is not None:
        outcome, code, message = Outcome.ERROR, refusal.code, refusal.message
    elif request.refusal is not None:
        outcome, code, message = Outcome.ERROR, request.refusal.code, request.refusal.message
    elif request.expect_at is not None and (moved := pending.defined_after(request.expect_at, request)):
        outcome, code = Outcome.ERROR, "moved"
        message = (
            f"after log sequence {request.expect_at}, these values were or may have been edited, or came into conflict:"
            f" {first_of(moved)}; read them again before you edit them"
        )
    elif request.replayed is not None:
        updates = request.replayed.delta
    elif request.merged is not None:
        updates = request.merged.updates
        if request.merged.conflicts:
            outcome, code = Outcome.CONFLICTS, "conflicts"
            about = "edited again since" if request.offer is None else "edited on both sides"
            message = f"{about}: {first_of([one.id for one in request.merged.conflicts])}"
            conflicts = _shown(request.merged, about)
    elif request.from_change_set is not None and (gone := pending.missing(request.updates)):
        outcome, code, message = (
            Outcome.CONFLICTS,
            "conflicts",
            f"the values to remove do not exist in this change set: {first_of(gone)}",
        )
        conflicts = tuple([Conflict(id_, "does not exist in this change set") for id_ in gone[:MAX_CONFLICTS]])
    elif request.recompute is not None and not pending.derives(request.recompute, request.updates):
        function = request.recompute.function
        outcome, code = Outcome.ERROR, "nothing_to_recompute"
        message = "no value of this change set is derived" + ("" if function is None else f" by {function!r}")
        message += ", so there is nothing to recompute"
    position = unresolved = 0
    if outcome is _SUCCESS:
        delta.extend(updates)
        position, unresolved = _taken(request)
    return Decision(
        request.sequence,
        request.request_id,
        outcome,
        len(updates) if outcome is _SUCCESS else 0,
        code,
        message[:MAX_MESSAGE],
        request.redrive,
        request.attempts if outcome is _DEAD else 0,
        conflicts,
        request.digest,
        position,
        unresolved,
    )


def _taken(request: QueuedRequest) -> tuple[int, int]:
    """Return `Decision.position` and `Decision.unresolved` for a successful request."""
    if request.replayed is not None:
        return request.replayed.source.sequence, request.replayed.unresolved
    return 0 if request.offer is None else request.offer.source.sequence, 0


def defined_after(state: ChangeSetState, ids: Sequence[str], at: int) -> frozenset[str]:
    """Return the subset of `ids` that were, or may have been, defined or removed in `state` after log sequence `at`.
    The result includes ids whose conflicts were recorded after `at`."""
    defined_by, conflicts = state.defined_by, {} if state.branch is None else state.branch.conflicts
    return frozenset(
        [id_ for id_ in ids if defined_by(id_) > at or (id_ in conflicts and conflicts[id_].recorded_at > at)]
    )


def _shown(merged: Merged, about: str) -> tuple[Conflict, ...]:
    """Return the conflicts for a reply. Each of them gets the message `about`. The sides of a conflict are omitted if
    they are too large for the reply."""
    shown: list[Conflict] = []
    room = MAX_SIDES_BYTES
    for one in merged.conflicts[:MAX_CONFLICTS]:
        sides = (one.base, one.ours, one.theirs)
        size = len(dumps(CBOR, [None if side is None else side.to_wire() for side in sides]))
        fits = size <= room
        room -= size if fits else 0
        shown.append(Conflict(one.id, about, Sides(*sides) if fits else None))
    return tuple(shown)


class _PendingState:
    """The state after the requests of this batch that have been decided so far. Further requests are checked against
    it.

    Usually, removing a value that does not exist has no effect. If the edits were taken from another change set,
    however, it is a conflict, because the missing value shows that the two change sets have diverged.
    """

    def __init__(self, state: ChangeSetState, delta: list[Update]) -> None:
        branch = state.branch
        self._state, self._cells, self._delta = state, state.cells, delta
        self._birth, self._status = (0, _OPEN) if branch is None else (branch.birth, branch.status)
        self.born_ms = state.born_ms
        self._closed = self._status is not _OPEN
        self.guarded = self._closed or state.protected  # whether the change set refuses edits
        self._seen = 0
        self._present: dict[str, bool] = {}

    def refusal(self, request: QueuedRequest) -> UnprocessableError | None:
        """Return the reason why the change set refuses `request`, or None. Only reasons that do not depend on values
        are considered."""
        state, action = self._state, request.action
        if self._status is BranchStatus.DELETED:
            return refuse_deleted(request) or self._refuse_moved(request)
        if isinstance(action, Marking):
            if moved := self._refuse_moved(request):
                return moved
            if not state.edited:
                return UnprocessableError("this change set does not exist: create it first", code="no_such_change_set")
            if state.protected and action.deletes:
                return UnprocessableError(
                    "this change set is protected: end its protection before deleting it", code="protected"
                )
            return None
        if isinstance(action, Rebase):
            return refuse_rebase(state)
        if self._closed and (request.edits or request.recompute is not None or isinstance(action, Apply)):
            return UnprocessableError(
                f"this change set is closed ({self._status}): it accepts no edits unless it is reopened", code="closed"
            )
        if state.protected and request.edits:
            return UnprocessableError("this change set is protected: apply a branch instead", code="protected")
        if isinstance(action, Apply) and request.offer is not None:
            return check_target(state, action, request.offer, request.expect_at)
        return None

    def _refuse_moved(self, request: QueuedRequest) -> UnprocessableError | None:
        """Return the reason to refuse a mark that expects that the log has no newer commit, or None."""
        expected, last = request.expect_at, self._state.last
        if not isinstance(request.action, Marking) or expected is None or last <= expected:
            return None
        return UnprocessableError(
            f"commit {last} is newer than the expected commit {expected}: read the change set again first",
            code="moved",
        )

    def derives(self, asked: Recompute, updates: Sequence[Update]) -> bool:
        """Return whether the recompute `asked` will concern at least one derived value once `updates` are applied."""
        function = asked.function
        derives = (update for some in (self._delta, updates) for update in some if type(update) is Derive)
        return self._cells.uses(function) or any(function in (None, derive.function) for derive in derives)

    def defined_after(self, at: int, request: QueuedRequest) -> list[str]:
        """Return the ids in `request` that may have been defined or removed after log sequence `at`, including by this
        batch. If the change set did not exist at `at`, return all ids in the request."""
        self._catch_up()
        ids, moved = request.touched, request.moved
        if at < self._birth:
            return list(ids)
        if moved is None:
            moved = defined_after(self._state, ids, at)
        return [id_ for id_ in ids if id_ in self._present or id_ in moved]

    def _catch_up(self) -> None:
        for update in self._delta[self._seen :]:
            self._present[update.id] = type(update) is not Remove
        self._seen = len(self._delta)

    def missing(self, updates: Sequence[Update]) -> list[str]:
        """Return the ids that `updates` remove although they do not exist."""
        self._catch_up()
        own: dict[str, bool] = {}  # whether each id exists after the updates so far
        missing = []
        for update in updates:
            id_ = update.id
            if type(update) is Remove:
                if not own.get(id_, self._present.get(id_, id_ in self._cells)):
                    missing.append(id_)
                own[id_] = False
            else:
                own[id_] = True
        return missing
