"""The Python client of Rebaser: send updates, read values, follow commits.

Programs import from this package: `RebaserClient`, the updates, the values, and the errors. Servers and tools also use
the subpackages: `nats` and `jetstream` (messaging), `blobs` (large payloads), `requests` (sending requests), `log`
(reading the log of a change set), `admin` (streams, status, dead letters), `blocking` (the client for programs without
an event loop), and `spark` (a Spark data source).

This package imports `rebaser_core`, and nothing from `rebaser`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebaser_client.admin.dead_letters import DeadLetter, DeadLetterBox
    from rebaser_client.admin.status import Overview
    from rebaser_client.blocking import BlockingRebaserClient
    from rebaser_client.client import RebaserClient, Wait
    from rebaser_client.errors import (
        NewErrors,
        NotReadyError,
        QueueFull,
        RequestConflicts,
        RequestIdReused,
        RequestRejected,
        RequestTimeout,
        TooLarge,
        UnresolvedConflicts,
        ValueNotReady,
    )
    from rebaser_client.jetstream import Access
    from rebaser_client.log.blame import Blame, Copied
    from rebaser_client.log.branches import BranchChange, BranchConflict, BranchDiff, BranchInfo
    from rebaser_client.log.changes import Change, Diff, HistoryStatus, LogEntry, ShownCommit, ShownRequest
    from rebaser_client.log.entries import Entry, Newest
    from rebaser_client.log.positions import PositionPurged
    from rebaser_client.log.undo import UndoStep
    from rebaser_client.nats.errors import ClientClosedError, NotAllowed, NotAuthorized, NotConnectedError, NotSecure
    from rebaser_client.notebook import Values
    from rebaser_client.operations.rebases import BranchConflicts, Rebased
    from rebaser_client.options import ClientOptions
    from rebaser_client.refs import Ref, Template
    from rebaser_client.requests.many import Request, RequestOutcome, WaitMany
    from rebaser_core.commit import Commit, Computed, Decision, Kind, Outcome
    from rebaser_core.encoding.payload import ContentType
    from rebaser_core.errors import ConfigError, RebaserError, TransientError, UnprocessableError, UnsupportedVersion
    from rebaser_core.ids import RequestId
    from rebaser_core.limits import Limits
    from rebaser_core.messages import Conflict, Conflicts, DvuProgress, EnqueueUpdatesResponse, Failure, Success
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.state.selection import Item
    from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset, Update
    from rebaser_core.values import Fault, Json, JsonInput, State, Value

__all__ = [
    "Access",
    "Blame",
    "BlockingRebaserClient",
    "BranchChange",
    "BranchConflict",
    "BranchConflicts",
    "BranchDiff",
    "BranchInfo",
    "Change",
    "ChangeSetState",
    "ClientClosedError",
    "ClientOptions",
    "Commit",
    "Computed",
    "ConfigError",
    "Conflict",
    "Conflicts",
    "ContentType",
    "Copied",
    "DeadLetter",
    "DeadLetterBox",
    "Decision",
    "Derive",
    "Diff",
    "DvuProgress",
    "EnqueueUpdatesResponse",
    "Entry",
    "Failure",
    "Fault",
    "HistoryStatus",
    "Item",
    "Json",
    "JsonInput",
    "Kind",
    "Limits",
    "LogEntry",
    "Match",
    "NewErrors",
    "Newest",
    "NotAllowed",
    "NotAuthorized",
    "NotConnectedError",
    "NotReadyError",
    "NotSecure",
    "Outcome",
    "Overview",
    "PositionPurged",
    "QueueFull",
    "Rebased",
    "RebaserClient",
    "RebaserError",
    "Recompute",
    "Ref",
    "Remove",
    "Request",
    "RequestConflicts",
    "RequestId",
    "RequestIdReused",
    "RequestOutcome",
    "RequestRejected",
    "RequestTimeout",
    "Set",
    "ShownCommit",
    "ShownRequest",
    "State",
    "Success",
    "Template",
    "TooLarge",
    "TransientError",
    "UndoStep",
    "UnprocessableError",
    "UnresolvedConflicts",
    "Unset",
    "UnsupportedVersion",
    "Update",
    "Value",
    "ValueNotReady",
    "Values",
    "Wait",
    "WaitMany",
]

_NAMES = {
    "rebaser_client.admin.dead_letters": ("DeadLetter", "DeadLetterBox"),
    "rebaser_client.admin.status": ("Overview",),
    "rebaser_client.blocking": ("BlockingRebaserClient",),
    "rebaser_client.client": ("RebaserClient", "Wait"),
    "rebaser_client.errors": (
        "NewErrors",
        "NotReadyError",
        "QueueFull",
        "RequestConflicts",
        "RequestIdReused",
        "RequestRejected",
        "RequestTimeout",
        "TooLarge",
        "UnresolvedConflicts",
        "ValueNotReady",
    ),
    "rebaser_client.jetstream": ("Access",),
    "rebaser_client.log.blame": ("Blame", "Copied"),
    "rebaser_client.log.branches": ("BranchChange", "BranchConflict", "BranchDiff", "BranchInfo"),
    "rebaser_client.log.changes": ("Change", "Diff", "HistoryStatus", "LogEntry", "ShownCommit", "ShownRequest"),
    "rebaser_client.log.entries": ("Entry", "Newest"),
    "rebaser_client.log.positions": ("PositionPurged",),
    "rebaser_client.log.undo": ("UndoStep",),
    "rebaser_client.nats.errors": (
        "ClientClosedError",
        "NotAllowed",
        "NotAuthorized",
        "NotConnectedError",
        "NotSecure",
    ),
    "rebaser_client.notebook": ("Values",),
    "rebaser_client.options": ("ClientOptions",),
    "rebaser_client.operations.rebases": ("BranchConflicts", "Rebased"),
    "rebaser_client.refs": ("Ref", "Template"),
    "rebaser_client.requests.many": ("Request", "RequestOutcome", "WaitMany"),
    "rebaser_core.commit": ("Commit", "Computed", "Decision", "Kind", "Outcome"),
    "rebaser_core.encoding.payload": ("ContentType",),
    "rebaser_core.errors": (
        "ConfigError",
        "RebaserError",
        "TransientError",
        "UnprocessableError",
        "UnsupportedVersion",
    ),
    "rebaser_core.ids": ("RequestId",),
    "rebaser_core.limits": ("Limits",),
    "rebaser_core.messages": ("Conflict", "Conflicts", "DvuProgress", "EnqueueUpdatesResponse", "Failure", "Success"),
    "rebaser_core.state.change_set": ("ChangeSetState",),
    "rebaser_core.state.selection": ("Item",),
    "rebaser_core.updates": ("Derive", "Match", "Recompute", "Remove", "Set", "Unset", "Update"),
    "rebaser_core.values": ("Fault", "Json", "JsonInput", "State", "Value"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import `name` from its module when it is first used (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
