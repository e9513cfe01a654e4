"""The outcomes of requests that a state remembers, and how it forgets them."""

from itertools import takewhile

from rebaser_core.commit import Decision
from rebaser_core.ids import RequestId
from rebaser_core.record import record

# How much longer an outcome is kept if the request was sent again from the dead letters. This keeps a dead letter from
# being applied twice if it is sent again more than once.
REDRIVE_MEMORY_MS = 31 * 24 * 3600 * 1000


@record
class RecordedOutcome:
    """The outcome of a request, which is recorded so that the same reply can be sent again."""

    decision: Decision
    commit: int  # the log sequence of the commit that contains the decision
    at_ms: int  # the Unix time of this commit


def forget(outcomes: dict[RequestId, RecordedOutcome], before_ms: int) -> None:
    """Remove the oldest of `outcomes`, as long as they were recorded before `before_ms`.

    Call this rarely: a dict keeps the places of removed entries, and each call passes the places of all entries that
    were removed from the front, which may be as many as there are entries.
    """
    for old in list(takewhile(lambda one: one.at_ms < before_ms, outcomes.values())):
        del outcomes[old.decision.request_id]
