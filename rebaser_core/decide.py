"""What becomes of queued requests, as a pure function of the folded state: the decisions and the delta of one commit.

Invariant: a request is decided once. A request whose id has a recorded outcome is answered with it; a sequence at or
below `applied` without one was passed over, and is dead-lettered rather than applied out of order.

Only a request whose recorded outcome is `dead` can be tried anew, and only if it comes back from the dead letters: its
`redrive` is higher than the recorded one. The same id sent again by a client is answered `dead`, as before. The number
comes from a header that whoever may publish requests can set; all it can do is have a dead request tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rebaser_core.commit import Applied, BlobRef, Decision, Outcome
from rebaser_core.errors import RebaserError
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import ChangeSetState, RecordedOutcome
from rebaser_core.updates import Derive, Recompute, Remove, Update

REQUEST_ID_REUSED = "request_id_reused"  # the code of a request that has the id of another
MAX_MESSAGE = 1000  # characters of a recorded error message
MAX_CONFLICTS = 100  # that an answer names: it has to fit in a message


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request, read: either `updates` or the `error` that makes it unprocessable.

    `request_id` is `@<sequence>` where the message gives none that can be read, so that no two are ever confused.
    `recompute`: what is to be computed anew once they are applied. `redrive` and `attempts` are those of `Decision`.
    `blob`: where the updates stand, if that is no message. `digest`: that of its content, if it could be read.
    """

    sequence: int
    request_id: RequestId
    updates: tuple[Update, ...] = ()
    from_change_set: str | None = None
    error: RebaserError | None = None
    redrive: int = 0
    attempts: int = 0
    recompute: Recompute | None = None
    blob: BlobRef | None = None
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """`decisions`, `delta` and `recompute` go into the commit; there is none to write without a decision.

    `delta_blob` is where the delta stands already, being that of one request alone.

    `answers` has one entry for each incoming request, in order: the decision it gets, and the log sequence of the
    commit that holds it, or None if that is the commit to be written now.
    """

    decisions: tuple[Decision, ...]
    delta: tuple[Update, ...]
    answers: tuple[tuple[Decision, int | None], ...]
    applied: Applied
    skipped: int = 0
    recompute: tuple[Recompute, ...] = ()
    delta_blob: BlobRef | None = None


def decided_through(state: ChangeSetState, stream: str, last_sequence: int) -> int:
    """The highest request sequence that is decided, 0 in a new epoch.

    Another stream (by creation time), or one whose last sequence is below what was decided (restored from an older
    backup), is a new epoch: its sequences say nothing about those of the old one.
    """
    if state.applied is None or state.applied.stream != stream or last_sequence < state.applied.sequence:
        return 0
    return state.applied.sequence


def decide(state: ChangeSetState, epoch: Applied, incoming: Sequence[QueuedRequest]) -> DecidedBatch:
    """Decide `incoming`, in order. `epoch` is the current stream and the highest sequence decided in it so far."""
    decisions: list[Decision] = []
    delta: list[Update] = []
    answers: list[tuple[Decision, int | None]] = []
    here: dict[RequestId, Decision] = {}
    recompute: dict[Recompute, None] = {}
    branch = _PendingState(state, delta)
    highest, skipped = epoch.sequence, 0
    for request in incoming:
        again = here.get(request.request_id)
        if again is not None and not _tried_anew(again, request.sequence, request.redrive, epoch):
            answers.append((_again(again, request), None))
            continue
        recorded = recorded_outcome(state, epoch, request.request_id, request.sequence, request.redrive)
        if again is None and recorded is not None:
            answers.append((_again(recorded.decision, request), recorded.commit))
            continue
        if request.sequence <= epoch.sequence:
            skipped += 1
            decision = Decision(
                request.sequence,
                request.request_id,
                Outcome.DEAD,
                0,
                "skipped",
                "passed over by an earlier owner; send it again",
                request.redrive,
                digest=request.digest,
            )
        else:
            decision = _decide_one(branch, request, delta)
            if request.recompute is not None and decision.outcome is Outcome.SUCCESS:
                recompute[request.recompute] = None
            highest = max(highest, request.sequence)
        decisions.append(decision)
        here[request.request_id] = decision
        answers.append((decision, None))
    reached = Applied(epoch.stream, highest)
    blob = incoming[0].blob if len(incoming) == 1 and delta else None
    return DecidedBatch(tuple(decisions), tuple(delta), tuple(answers), reached, skipped, tuple(recompute), blob)


def recorded_outcome(
    state: ChangeSetState, epoch: Applied, request_id: RequestId, sequence: int, redrive: int
) -> RecordedOutcome | None:
    """The outcome that a request is answered with instead of being decided; None if it is to be decided."""
    recorded = state.recorded(request_id)
    if recorded is None or _tried_anew(recorded.decision, sequence, redrive, epoch):
        return None
    return recorded


def _again(decision: Decision, request: QueuedRequest) -> Decision:
    """The answer to a request whose id was decided: the same again, unless it asks for something else now.

    Then it is dead, which no commit records: it changes nothing, and the id keeps its outcome. So whichever of the two
    is sent once more gets its own answer again. Redriven, it comes back for as long as the id is remembered.
    """
    if not (decision.digest and request.digest) or decision.digest == request.digest:
        return decision
    message = "a request with this id and other content was decided before; nothing of this one was applied"
    return Decision(
        request.sequence, request.request_id, Outcome.DEAD, 0, REQUEST_ID_REUSED, message, redrive=request.redrive
    )


def _tried_anew(decision: Decision, sequence: int, redrive: int, epoch: Applied) -> bool:
    return decision.outcome is Outcome.DEAD and redrive > decision.redrive and sequence > epoch.sequence


def _decide_one(branch: "_PendingState", request: QueuedRequest, delta: list[Update]) -> Decision:
    outcome, performed, code, message = Outcome.SUCCESS, len(request.updates), "", ""
    gone: list[str] = []
    if request.error is not None:
        outcome, performed, code, message = Outcome.DEAD, 0, request.error.code, request.error.message
    elif request.from_change_set is not None and (gone := branch.gone(request.updates)):
        more = f" and {len(gone) - 10} more" if gone[10:] else ""
        outcome, performed, code = Outcome.CONFLICTS, 0, "conflicts"
        message = f"not here any more: {', '.join(gone[:10])}{more}"
    elif request.recompute is not None and not branch.derives(request.recompute, request.updates):
        function = request.recompute.function
        outcome, performed, code = Outcome.ERROR, 0, "nothing_to_recompute"
        message = "no value here is derived" + ("" if function is None else f" by {function!r}")
    else:
        delta.extend(request.updates)
    return Decision(
        request.sequence,
        request.request_id,
        outcome,
        performed,
        code,
        message[:MAX_MESSAGE],
        request.redrive,
        request.attempts if outcome is Outcome.DEAD else 0,
        tuple(gone[:MAX_CONFLICTS]),
        request.digest,
    )


class _PendingState:
    """What is here: which ids exist, for edits that come from another change set, and which functions are used.

    An edit made right here is forgiving (removing twice is removing once); one replayed from another branch rests on
    what stood there, so a missing value means that the branches have parted.
    """

    def __init__(self, state: ChangeSetState, delta: list[Update]) -> None:
        self._cells = state.cells
        self._delta = delta
        self._seen = 0
        self._present: dict[str, bool] = {}

    def derives(self, asked: Recompute, updates: Sequence[Update]) -> bool:
        """Whether there is anything to recompute once `updates` are applied."""
        function = asked.function
        made = (one for some in (self._delta, updates) for one in some if type(one) is Derive)
        return self._cells.uses(function) or any(function in (None, one.function) for one in made)

    def gone(self, updates: Sequence[Update]) -> list[str]:
        """Ids that `updates` would remove, though nothing is there to be removed."""
        for update in self._delta[self._seen :]:
            self._present[update.id] = type(update) is not Remove
        self._seen = len(self._delta)
        ours: dict[str, bool] = {}
        gone = []
        for update in updates:
            id_ = update.id
            if type(update) is Remove:
                if not ours.get(id_, self._present.get(id_, id_ in self._cells)):
                    gone.append(id_)
                ours[id_] = False
            else:
                ours[id_] = True
        return gone
