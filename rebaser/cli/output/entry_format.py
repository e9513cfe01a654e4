"""Formats one message for `rebaser tail`: as a line for people, or as an object for `--json`.

Invariant: only the ids of values appear, never the values. The length of every text is limited, and control characters
never reach a terminal.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rebaser.cli.output import console
from rebaser.cli.output.change_format import (
    marking_json,
    marking_text,
    origin_json,
    reverts_json,
    reverts_text,
    source_text,
)
from rebaser.cli.output.wording import progress_text, recompute_text
from rebaser_client.log.entries import Entry
from rebaser_core.branches.branch import Action, Apply, Create, Rebase
from rebaser_core.commit import DVU_ATTEMPT, PULL_ATTEMPT, Authorship, Commit, Decision, Marking, Reverts
from rebaser_core.messages import DvuProgress, EnqueueUpdatesRequest
from rebaser_core.updates import Recompute, Update

MAX_TEXT = 200  # maximum number of characters of a text
MAX_IDS = 5  # maximum number of ids in a line
MAX_LISTED = 1000  # maximum number of requests, or of updates, in an object

DEAD_LETTER_HEADERS = {
    "requestId": "X-Request-Id",
    "code": "X-Reason-Code",
    "reason": "X-Reason",
    "originalSequence": "X-Original-Sequence",
    "server": "X-Server",
}


def entry_object(entry: Entry) -> dict[str, Any]:
    """Return the content of the message as a JSON object, without values."""
    out: dict[str, Any] = {
        "sequence": entry.sequence,
        "time": _time(entry.time_ns),
        "workspaceId": entry.key.workspace if entry.key else None,
        "changeSetId": entry.key.change_set if entry.key else None,
        "bytes": entry.size,
    }
    if entry.problem is not None:
        return out | {"problem": {"code": entry.problem.code, "message": _short(entry.problem.message)}}
    if isinstance(entry.content, Commit):
        return out | _commit(entry.content)
    if isinstance(entry.content, EnqueueUpdatesRequest):
        return out | _request(entry.content)
    return out | {name: _short(entry.headers.get(header, "")) for name, header in DEAD_LETTER_HEADERS.items()}


def entry_line(entry: Entry, columns: bool) -> str:
    """Return the content of the message as one line. Its fields are aligned for a terminal if `columns` is true;
    otherwise, tabs separate them."""
    if entry.problem is not None:
        kind, text = "unreadable", f"{entry.problem.code}: {entry.problem.message}"
    elif isinstance(entry.content, Commit):
        kind, text = entry.content.kind.value, _commit_text(entry.content)
    elif isinstance(entry.content, EnqueueUpdatesRequest):
        kind, text = "request", _request_text(entry.content)
    else:
        letter = {name: entry.headers.get(header, "") for name, header in DEAD_LETTER_HEADERS.items()}
        kind, text = "dead", f"{letter['requestId']} {letter['code']}: {letter['reason']} ({letter['server']})"
    source = f"{entry.key.workspace}/{entry.key.change_set}" if entry.key else entry.subject
    return _line(
        [str(entry.sequence), _time(entry.time_ns), source, kind, console.size_text(entry.size), text], columns
    )


def progress_object(progress: DvuProgress, time_ns: int) -> dict[str, Any]:
    """Return a progress report that was received at `time_ns` as a JSON object. No stream stores it, so it has no
    sequence.

    `covers` has the same meaning as in the commit that the update will append.
    """
    return {
        "sequence": None,
        "time": _time(time_ns),
        "workspaceId": progress.workspace_id,
        "changeSetId": progress.change_set_id,
        "kind": "progress",
        "server": _short(progress.server),
        "covers": progress.covers,
        "done": progress.done,
        "total": progress.total,
        "seconds": progress.seconds,
    }


def progress_line(progress: DvuProgress, time_ns: int, columns: bool) -> str:
    """Return a progress report as a line."""
    text = f"{progress_text(progress.done, progress.total, progress.seconds)}; by {progress.server}"
    source = f"{progress.workspace_id}/{progress.change_set_id}"
    return _line(["", _time(time_ns), source, "progress", "", text], columns)


def _line(cells: list[str], columns: bool) -> str:
    cells = [console.safe(_short(cell)) for cell in cells]
    if not columns:
        return "\t".join(cells)
    sequence, time, source, kind, size, text = cells
    return f"{sequence:>8}  {time}  {source:<20}  {kind:<10}  {size:>8}  {text}"


def _commit(commit: Commit) -> dict[str, Any]:
    blob = commit.delta_blob
    return {
        "kind": commit.kind.value,
        "id": commit.id,
        "owner": _short(commit.owner),
        "previous": commit.previous,
        "applied": commit.applied.sequence if commit.applied else None,
        "covers": commit.covers,
        "checkpoint": commit.checkpoint.sequence if commit.checkpoint else None,
        "checkpointAddress": commit.checkpoint.address if commit.checkpoint else None,
        "changed": None if blob is not None else len(commit.delta),
        "deltaBytes": None if blob is None else blob.size,
        "attempt": commit.attempt.count if commit.attempt else None,
        "recompute": [_recompute(request) for request in commit.recompute[:MAX_LISTED]],
        "requestCount": len(commit.requests),
        "reverts": reverts_json(commit.reverts),
        "from": origin_json(commit),
        **({"protected": None, "status": None} | ({} if commit.marking is None else marking_json(commit.marking))),
        "requests": [
            _decision(decision) | _authorship(who)
            for decision, who in zip(
                commit.requests[:MAX_LISTED], commit.authors or (Authorship(),) * len(commit.requests), strict=False
            )
        ],
    }


def _authorship(who: Authorship) -> dict[str, str]:
    """Return the author and the message of a request. The message has the key `authorMessage`, because `message` is the
    error message of a decision."""
    return {"author": _short(who.author), "authorMessage": _short(who.message)}


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "sequence": decision.sequence,
        "requestId": _short(decision.request_id),
        "outcome": decision.outcome.value,
        "performed": decision.performed,
        "code": _short(decision.code),
        "message": _short(decision.message),
    }


def _commit_text(commit: Commit) -> str:
    parts = []
    if commit.requests:
        counts = Counter(decision.outcome.value for decision in commit.requests)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        only_id = f" {commit.requests[0].request_id}" if len(commit.requests) == 1 else ""
        parts.append(f"{_count(len(commit.requests), 'request')}{only_id} ({outcomes})")
    if commit.origin is not None:
        parts.append(f"created from {commit.origin.change_set}@{commit.origin.sequence}")
    if commit.delta_blob is not None:
        parts.append(f"changes in a blob of {console.size_text(commit.delta_blob.size)}")
    elif commit.delta:
        parts.append(f"{_count(len(commit.delta), 'change')}: {_ids(change.id for change in commit.delta)}")
    if commit.reverts is not None:
        parts.append(reverts_text(commit.reverts))
    if commit.source is not None:
        parts.append(source_text(commit.source, commit.kind))
    if commit.marking is not None:
        parts.append(marking_text(commit.marking))
    if commit.recompute:
        parts.append(
            "recompute " + ", ".join(recompute_text(request.function) for request in commit.recompute[:MAX_IDS])
        )
    if commit.attempt is not None:
        attempt = commit.attempt
        named = {DVU_ATTEMPT: "the DVU", PULL_ATTEMPT: "a pull from the target"}
        target = named.get(attempt.sequence, f"request {attempt.sequence}")
        parts.append(f"attempt {attempt.count + attempt.deaths} of {target}")
    parts.append(f"by {commit.owner}")
    return "; ".join(parts)


def _request(request: EnqueueUpdatesRequest) -> dict[str, Any]:
    updates = request.updates
    return {
        "kind": "request",
        "requestId": request.id,
        "updateCount": None if updates is None else len(updates),
        "updates": None if updates is None else [_update(update) for update in updates[:MAX_LISTED]],
        "updatesAddress": request.updates_address,
        "fromChangeSetId": request.from_change_set_id,
        "recompute": None if request.recompute is None else _recompute(request.recompute),
        "expectAt": request.expect_at,
        **_action(request.action),
        **_authorship(Authorship(request.author, request.message)),
    }


def _recompute(request: Recompute) -> dict[str, str | None]:
    return {"function": None if request.function is None else _short(request.function)}


def _update(update: Update) -> dict[str, str]:
    return {"op": type(update).__name__.lower(), "id": _short(update.id)}


def _create(create: Create) -> dict[str, Any]:
    return {
        "from": create.parent,
        "at": create.at,
        "target": create.target,
        "closed": create.closed,
        "follow": "auto" if create.follows else "manual",
    }


def _action(action: Action | None) -> dict[str, Any]:
    """Return an object that contains the action of a request under the name of its kind. The keys `revert`, `create`,
    `apply` and `mark` are always present, and null for other kinds of actions."""
    out: dict[str, Any] = dict.fromkeys(("revert", "create", "apply", "mark"))
    match action:
        case Reverts():
            out["revert"] = reverts_json(action)
        case Create():
            out["create"] = _create(action)
        case Apply():
            flags = {"strict": action.strict, "allowStale": action.allow_stale, "keep": action.keep}
            out["apply"] = {"from": action.source, "at": action.at} | flags
        case Rebase():
            where = {"upto": action.upto, "onto": action.onto, "settles": action.settles}
            out["rebase"] = where | {"strategy": action.strategy.value}
        case Marking():
            out["mark"] = marking_json(action)
    return out


def _action_text(action: Action) -> str:
    match action:
        case Reverts():
            return reverts_text(action)
        case Create():
            return _create_text(action)
        case Apply():
            return f"apply {action.source}" + ("" if action.at is None else f"@{action.at}")
        case Rebase():
            return _rebase_text(action)
    return marking_text(action)


def _create_text(create: Create) -> str:
    if create.parent is None:
        return "create an empty change set"
    manual = "" if create.follows else ", without following its target"
    return f"create from {create.parent}" + ("" if create.at is None else f"@{create.at}") + manual


def _rebase_text(rebase: Rebase) -> str:
    onto = "" if rebase.onto is None else f" onto {rebase.onto}"
    upto = "" if rebase.upto is None else f" up to {rebase.upto}"
    return f"rebase{onto}{upto}" + ("" if rebase.settles is None else f", after it was applied at {rebase.settles}")


def _request_text(request: EnqueueUpdatesRequest) -> str:
    parts: list[str] = [request.id]
    if request.action is not None:
        parts.append(_action_text(request.action))
    elif request.updates is None:
        parts.append("updates in a blob")
    elif request.updates or request.recompute is None:
        parts.append(f"{_count(len(request.updates), 'update')}: {_ids(update.id for update in request.updates)}")
    if request.recompute is not None:
        parts.append(f"recompute {recompute_text(request.recompute.function)}")
    return "; ".join(parts)


def _ids(ids: Iterable[str]) -> str:
    names = list(ids)
    more = f" and {len(names) - MAX_IDS:,} more" if len(names) > MAX_IDS else ""
    return ", ".join(names[:MAX_IDS]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _time(time_ns: int) -> str:
    whole = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}Z"
