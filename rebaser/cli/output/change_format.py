"""Formats commits and changes for `rebaser log`, `show`, `blame` and `diff`: as cells of tables, or as JSON objects."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client.log.blame import Blame, Copied
    from rebaser_client.log.branches import BranchChange
    from rebaser_client.log.changes import Change, Definition, LogEntry
    from rebaser_core.commit import Authorship, Commit, Decision, Marking, Reverts, Source

MAX_CELL = 200  # maximum number of characters of a definition in a table
NOTHING, UNKNOWN = "-", "(unknown)"


def time_text(time: datetime) -> str:
    """Return a time as text, in UTC and to the second."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def time_json(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z"


def definition_text(definition: "Definition | None", known: bool = True) -> str:
    """Return a definition as text: a value as JSON, a derived value as `= function inputs parameters`."""
    from rebaser_core.updates import Derive, Set

    if definition is None:
        return NOTHING if known else UNKNOWN
    if isinstance(definition, Set):
        text = console.json_text(definition.value)
    elif isinstance(definition, Derive):
        wire = definition.to_wire()
        parts = [wire["inputs"], wire["params"]] if wire["params"] else [wire["inputs"]]
        text = " ".join(["=", wire["function"], *map(console.json_text, parts)])
    else:
        text = "(unset)"
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def definition_json(definition: "Definition | None") -> dict[str, Any] | None:
    """Return a definition as a JSON object: an update without its id. Return None if `definition` is None."""
    if definition is None:
        return None
    return {name: value for name, value in definition.to_wire().items() if name != "id"}


def change_json(change: "Change") -> dict[str, Any]:
    """Return a change as a JSON object. It contains `beforeKnown: false` if the log does not record what the change
    replaced."""
    known = {} if change.known else {"beforeKnown": False}
    return {
        "id": change.id,
        "before": definition_json(change.before),
        "after": definition_json(change.after),
        **known,
    }


def change_row(change: "Change") -> tuple[str, str, str]:
    return change.id, definition_text(change.before, change.known), definition_text(change.after)


def branch_change_row(change: "BranchChange") -> tuple[str, str, str, str]:
    """Return the cells for a value: its id, and its definitions at the base, in the branch, and in the target.

    The last cell is empty if the target has not changed the value since the base.
    """
    theirs = definition_text(change.theirs) if change.moved else ""
    theirs += " (landed)" if change.landed else ""
    return change.id, definition_text(change.base), definition_text(change.ours), theirs


def branch_change_json(change: "BranchChange") -> dict[str, Any]:
    parts = {"base": change.base, "ours": change.ours, "theirs": change.theirs}
    return (
        {"id": change.id}
        | {name: definition_json(part) for name, part in parts.items()}
        | {"moved": change.moved, "landed": change.landed}
    )


def request_json(decision: "Decision", author: "Authorship") -> dict[str, Any]:
    return {
        "requestId": decision.request_id,
        "outcome": decision.outcome.value,
        "updates": decision.performed,
        "author": author.author,
        "message": author.message,
        **({"code": decision.code, "reason": decision.message} if decision.code else {}),
    }


def blame_json(blame: "Blame") -> dict[str, Any]:
    """Return, as a JSON object, who last defined a value."""
    return {
        "id": blame.id,
        "changeSetId": blame.change_set or None,
        "position": blame.sequence or None,
        "time": None if blame.entry is None else time_json(blame.entry.time),
        "request": None if blame.request is None else request_json(*blame.request),
        "copies": [_copy_json(copied) for copied in blame.copies],
        "lost": blame.lost or None,
    }


def _copy_json(copied: "Copied") -> dict[str, Any]:
    return {
        "changeSetId": copied.change_set,
        "position": copied.entry.sequence,
        "time": time_json(copied.entry.time),
        "kind": copied.entry.kind.value,
        "from": origin_json(copied.entry.commit),
        "request": None if copied.request is None else request_json(*copied.request),
    }


def blame_place(blame: "Blame") -> str:
    """Return the position of the commit that last defined a value."""
    if not blame.sequence:
        return UNKNOWN
    return f"{blame.change_set}@{blame.sequence}" if blame.change_set else str(blame.sequence)


def copies_text(blame: "Blame") -> tuple[str, ...]:
    """Return a line for each commit that copied the definition of a value, from the edit to the newest one. If the
    history of the first copy is lost, its line says so."""
    lines = []
    if blame.lost and blame.entry is not None and blame.entry.commit.source is not None:
        source = blame.entry.commit.source
        lines.append(f"from {source.change_set}@{source.sequence}, which cannot be read any more")
    for copied in reversed(blame.copies):
        verb = "rebased into" if copied.entry.kind == "replay" else "applied to"
        who = "" if copied.request is None else f" by {copied.request[1].author or copied.request[0].request_id}"
        lines.append(f"{verb} {copied.change_set}@{copied.entry.sequence}{who}")
    return tuple(lines)


def reverts_json(reverts: "Reverts | None") -> dict[str, Any] | None:
    if reverts is None:
        return None
    of = {} if reverts.of is None else {"of": reverts.of}
    return {"first": reverts.first, "last": reverts.last, "requestId": reverts.request} | of


def reverts_text(reverts: "Reverts") -> str:
    """Return a short text that describes the edits that a revert undoes."""
    span = f"{reverts.first}" if reverts.first == reverts.last else f"{reverts.first}..{reverts.last}"
    span += "" if reverts.of is None else f" of {reverts.of}"
    return f"reverts {span}" + (f" (request {reverts.request})" if reverts.request else "")


def origin_json(commit: "Commit") -> dict[str, Any] | None:
    """Return, as a JSON object, the parent from which a change set was created, or the change set from which a commit
    took its changes."""
    origin = commit.origin or commit.source
    return None if origin is None else {"changeSetId": origin.change_set, "position": origin.sequence}


def source_text(source: "Source", kind: str) -> str:
    return f"{'rebased on' if kind == 'replay' else 'applied'} {source.change_set}@{source.sequence}"


def marking_text(marking: "Marking") -> str:
    if marking.status is not None:
        return {"open": "reopened", "deleted": "deleted"}.get(marking.status.value, f"closed ({marking.status})")
    return "protected" if marking.protected else "no longer protected"


def marking_json(marking: "Marking") -> dict[str, Any]:
    return {"protected": marking.protected} if marking.status is None else {"status": marking.status.value}


def entry_json(entry: "LogEntry") -> dict[str, Any]:
    """Return a commit as a JSON object."""
    return {
        "position": entry.sequence,
        "time": time_json(entry.time),
        "kind": entry.kind.value,
        "reverts": reverts_json(entry.reverts),
        **({"from": origin_json(entry.commit)} if entry.kind == "create" or entry.commit.source else {}),
        **(marking_json(entry.commit.marking) if entry.commit.marking else {}),
        "requests": [request_json(decision, author) for decision, author in entry.requests],
    }


def authors_text(entry: "LogEntry") -> str:
    """Return the authors of the requests of a commit, each once."""
    return ", ".join(dict.fromkeys(author.author for _, author in entry.requests if author.author))


def entry_text(entry: "LogEntry") -> str:
    """Return a short summary of a commit: its requests, the commits that it reverts, the branch that it applies, and
    the first message."""
    parts = []
    if entry.kind == "create":
        origin = entry.commit.origin
        parts.append("created empty" if origin is None else f"created from {origin.change_set}@{origin.sequence}")
    if entry.commit.source is not None:
        parts.append(source_text(entry.commit.source, entry.kind))
    if entry.commit.marking is not None:
        parts.append(marking_text(entry.commit.marking))
    if entry.reverts is not None:
        parts.append(reverts_text(entry.reverts))
    if len(entry.requests) == 1:
        decision = entry.requests[0][0]
        parts.append(decision.request_id if entry.commit.marking else f"{decision.request_id}: {_done(decision)}")
    elif entry.requests:
        failed = sum(decision.outcome.value != "success" for decision, _ in entry.requests)
        updates = sum(decision.performed for decision, _ in entry.requests)
        parts.append(
            f"{len(entry.requests)} requests: {_count(updates, 'update')}"
            + (f", {failed} not applied" if failed else "")
        )
    else:
        parts.append(entry.kind.value)
    message = next((author.message for _, author in entry.requests if author.message), "")
    return "; ".join(parts) + (f' "{message.splitlines()[0]}"' if message else "")


def _done(decision: "Decision") -> str:
    outcome = decision.outcome.value
    if outcome != "success":
        return f"not applied ({decision.code or outcome})"
    return _count(decision.performed, "update")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
