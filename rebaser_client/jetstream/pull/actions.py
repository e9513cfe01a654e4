"""The actions that a puller carries out for `PullState`, and the meanings of statuses (ADR-37, "Status handling")."""

from typing import Literal, NamedTuple, TypeAlias

from rebaser_client.jetstream.errors import ConsumerDeletedError, PullRefusedError
from rebaser_client.nats.errors import NoRespondersError
from rebaser_core.errors import RebaserError


class SendPull(NamedTuple):
    """Send a pull whose reply subject ends in `token`.

    If `max_bytes` is 0, there is no limit in bytes. If `pin` is empty, the pull contains no pin.
    """

    token: int
    batch: int
    max_bytes: int
    pin: str


class PullWarning(NamedTuple):
    """Notify the user of a problem that does not end pulling. `status` is empty if no status caused the problem."""

    event: str
    status: str
    reason: str


class ResumeAfter(NamedTuple):
    """Call `PullState.resume` after `seconds`."""

    seconds: float


class RenewInbox(NamedTuple):
    """Subscribe to a new inbox once all messages on the old one have been received, then call `PullState.renewed`."""


class CheckConsumer(NamedTuple):
    """Ask the server whether the consumer still exists."""


class NotifyPinned(NamedTuple):
    """Notify the user that the server pinned this client. `pin` is the id of the pin."""

    pin: str


class NotifyUnpinned(NamedTuple):
    """Notify the user that this client is no longer pinned. Another client may be pinned by now."""


class EndPulling(NamedTuple):
    """End pulling. `error` is the reason; None if the reader stopped pulling, or if a fetch ended as expected."""

    error: RebaserError | None


Action: TypeAlias = SendPull | PullWarning | ResumeAfter | RenewInbox | NotifyPinned | NotifyUnpinned | EndPulling
NOTHING: tuple[Action, ...] = ()

Meaning: TypeAlias = Literal["expected", "warning", "all_lost", "error", "deleted", "final"]
_MEANINGS: dict[str, Meaning] = {"404": "expected", "408": "expected", "423": "expected", "400": "error"}
_CONFLICTS: tuple[tuple[str, Meaning], ...] = (
    ("Message Size Exceeds MaxBytes", "expected"),
    ("Batch Completed", "expected"),
    ("Batch-Completed", "expected"),  # the spelling of ADR-37
    ("Consumer Deleted", "deleted"),
    ("Consumer is push based", "final"),
    ("Leadership Change", "all_lost"),
)


def meaning(status: str, description: str) -> Meaning:
    """Return the meaning of a status that ends a pull.

    - `expected`: pull again.
    - `warning`, `error`: notify the user, wait, and pull again.
    - `all_lost`: the same as `warning`, but treat all other pulls as ended, too.
    - `deleted`: end, or wait until the consumer exists again.
    - `final`: end.
    """
    if status == "409":
        return next((what for text, what in _CONFLICTS if description.startswith(text)), "warning")
    return _MEANINGS.get(status, "warning")


def refusal(status: str, description: str) -> RebaserError:
    """Return the error to raise for a status that ends pulling."""
    if status == "503":
        return NoRespondersError("pulls get no answer: the consumer does not exist, or JetStream is not available")
    kind = ConsumerDeletedError if meaning(status, description) == "deleted" else PullRefusedError
    return kind(status, description)
