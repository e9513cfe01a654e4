"""The objects of the JSON API for requests that wait in a queue.

Invariant: as in `shapes`, values and texts that may quote one are hidden if `hiding` says so.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rebaser.console.access.hiding import size_told, told, values_shown
from rebaser.console.shapes import cut, payload_object, time_text, trace_id
from rebaser_client.log.entries import Entry
from rebaser_core.messages import EnqueueUpdatesRequest


def queued_object(entry: Entry, *, decided: bool) -> dict[str, Any]:
    """Return a request in a queue. `decided`: whether the log has its decision, so that it is only to be deleted."""
    request = entry.content if isinstance(entry.content, EnqueueUpdatesRequest) else None
    found: dict[str, Any] = {
        "sequence": entry.sequence,
        "time": time_text(datetime.fromtimestamp(entry.time_ns / 1e9, UTC)),
        "bytes": size_told(entry.size),
        "trace": trace_id(entry.headers),
        "decided": decided,
        "requestId": "",
        "author": "",
        "message": "",
        "kind": "unreadable",
        "updates": None,
        "problem": cut(told(entry.problem.message)) if entry.problem is not None else None,
    }
    if request is None:
        return found
    return found | {
        "requestId": cut(request.id, 200),
        "author": cut(request.author, 200),
        "message": cut(told(request.message)),
        "kind": _request_kind(request),
        "updates": None if request.updates is None else len(request.updates),
    }


def _request_kind(request: EnqueueUpdatesRequest) -> str:
    if request.action is not None:
        return {"Reverts": "revert", "Marking": "mark"}.get(name := type(request.action).__name__, name.lower())
    return "recompute" if request.recompute is not None and request.updates == () else "edit"


def request_payload(request: EnqueueUpdatesRequest, size: int) -> dict[str, Any]:
    """Return the text of a request: its updates, or what else it asks for."""
    if not values_shown():
        return payload_object(b"", size)
    updates = request.updates if request.updates is None else [update.to_wire() for update in request.updates]
    found = {
        "updates": updates,
        "updatesAddress": request.updates_address,
        "recompute": None if request.recompute is None else request.recompute.to_wire(),
        "action": None if request.action is None else asdict(request.action),
        "expectAt": request.expect_at,
    }
    return payload_object({name: value for name, value in found.items() if value not in (None, [])}, size)
