"""Talk to Rebaser from Python: send updates, read values, follow commits."""

from rebaser_client.client import RebaserClient
from rebaser_client.dead_letters import DeadLetter, DeadLetterBox
from rebaser_client.entries import Entry, Newest
from rebaser_client.errors import (
    ClientClosedError,
    NotConnectedError,
    NotReadyError,
    QueueFull,
    RequestRejected,
    RequestTimeout,
    TooLarge,
)
from rebaser_core.commit import Commit
from rebaser_core.messages import Conflicts, DvuProgress, EnqueueUpdatesResponse, Failure, Success
from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset, Update
from rebaser_core.values import Fault, State, Value

__all__ = [
    "ClientClosedError",
    "Commit",
    "Conflicts",
    "DeadLetter",
    "DeadLetterBox",
    "Derive",
    "DvuProgress",
    "EnqueueUpdatesResponse",
    "Entry",
    "Failure",
    "Fault",
    "Match",
    "Newest",
    "NotConnectedError",
    "NotReadyError",
    "QueueFull",
    "RebaserClient",
    "Recompute",
    "Remove",
    "RequestRejected",
    "RequestTimeout",
    "Set",
    "State",
    "Success",
    "TooLarge",
    "Unset",
    "Update",
    "Value",
]
