"""What a puller can be told to do, and what the statuses of a server mean to it (ADR-37, "Status handling")."""

from typing import Literal, NamedTuple, TypeAlias

from rebaser_client.jetstream.errors import ConsumerDeletedError, PullRefusedError
from rebaser_client.nats.errors import NoRespondersError
from rebaser_core.errors import RebaserError


class SendPull(NamedTuple):
    """Send a pull whose answers name `token`. `max_bytes` 0: none; `pin` empty: none."""

    token: int
    batch: int
    max_bytes: int
    pin: str


class PullWarning(NamedTuple):
    """Tell the user: it goes on, but not as it should. `status` is empty where no status says so."""

    event: str
    status: str
    reason: str


class ResumeAfter(NamedTuple):
    """Call `resume` after `seconds`."""

    seconds: float


class RenewInbox(NamedTuple):
    """Listen on a new inbox, when everything for the old one has come, then call `renewed`."""


class CheckConsumer(NamedTuple):
    """See whether the consumer is still there."""


class NotifyPinned(NamedTuple):
    """The consumer chose this client; the server knows it by `pin`."""

    pin: str


class NotifyUnpinned(NamedTuple):
    """The pin is another's now, or nobody's."""


class EndPulling(NamedTuple):
    """It is over; nothing more will be pulled."""

    error: RebaserError | None


Action: TypeAlias = SendPull | PullWarning | ResumeAfter | RenewInbox | NotifyPinned | NotifyUnpinned | EndPulling
NOTHING: tuple[Action, ...] = ()

Meaning: TypeAlias = Literal["silent", "warn", "lost", "error", "deleted", "final"]
_MEANINGS: dict[str, Meaning] = {"404": "silent", "408": "silent", "423": "silent", "400": "error"}
_CONFLICTS: tuple[tuple[str, Meaning], ...] = (
    ("Message Size Exceeds MaxBytes", "silent"),
    ("Batch Completed", "silent"),
    ("Batch-Completed", "silent"),  # as ADR-37 spells it
    ("Consumer Deleted", "deleted"),
    ("Consumer is push based", "final"),
    ("Leadership Change", "lost"),
)


def meaning(status: str, description: str) -> Meaning:
    """What a status that ends a pull asks for.

    `silent`: pull again. `warn`, `error`: tell, wait, pull again. `lost`: as `warn`, all other pulls are over, too.
    `deleted`, `final`: it is over.
    """
    if status == "409":
        return next((found for text, found in _CONFLICTS if description.startswith(text)), "warn")
    return _MEANINGS.get(status, "warn")


def refusal(status: str, description: str) -> RebaserError:
    """What to raise for a status that ends it."""
    if status == "503":
        return NoRespondersError("nobody answers pulls: the consumer is not there, or JetStream is away")
    kind = ConsumerDeletedError if meaning(status, description) == "deleted" else PullRefusedError
    return kind(status, description)
