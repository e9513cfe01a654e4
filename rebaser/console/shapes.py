"""The objects of the JSON API. Names and words are those of the command line's `--json`.

Invariants: a value is sent as the text of its JSON, because a browser would round large integers. Texts are cut at a
length that the callers name. Only this module and `queued` make JSON of a value, of a definition, or of a text that may
quote one; each of them is hidden if `hiding` says so.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rebaser.console.access.hiding import kind_of, need_values, size_told, told, told_start, values_shown
from rebaser_client.admin.fleet import ActiveChangeSet
from rebaser_client.admin.servers import ServerInfo, UpdateInfo
from rebaser_client.admin.stream_usage import StreamStatus, durability_of
from rebaser_client.log.blame import Blame
from rebaser_client.log.branches import BranchInfo
from rebaser_client.log.changes import Change, LogEntry
from rebaser_core.commit import Authorship, Commit, Decision, Outcome
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.messages.headers.traces import TRACEPARENT, read_trace
from rebaser_core.updates import Derive, Match, Remove, Set, Update
from rebaser_core.values import Fault, State, Value

MAX_TEXT = 1000  # characters of a reason or a message
MAX_CELL = 200  # characters of a value in a table
MAX_VALUE = 64 * 1024  # characters of one value
MAX_REQUESTS = 100  # of a commit
MAX_INPUTS = 100  # of a definition
STAGES = ("plan", "spark", "absorb", "commit")  # of an update, in their order; a server may say no others
PLANS = ("", "packets", "full graph")
TAG = re.compile(r"rebaser-\d{1,19}")  # of a Spark job; a server may say nothing else


def time_text(time: datetime) -> str:
    """Return a time in UTC, to the millisecond."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z"


def cut(text: str, most: int = MAX_TEXT) -> str:
    """Return the start of a text, in which invisible characters are replaced by escapes."""
    return seen_text(text if len(text) <= most else text[: most - 1] + "…")


def camel_case(fields: dict[str, Any]) -> dict[str, Any]:
    words = {name: name.split("_") for name in fields}
    return {first + "".join(word.title() for word in rest): fields[name] for name, (first, *rest) in words.items()}


def server_object(server: ServerInfo) -> dict[str, Any]:
    """Return a server, without its functions, and without what it reported on change sets."""
    return {
        "id": cut(server.id, 200),
        "version": cut(server.version, 40),
        "owned": server.owned,
        "slots": server.slots,
        "dvu": cut(told_start(server.dvu), 200),
        "sweeper": server.sweeper,
        "durability": None if server.durability is None else cut(server.durability, 200),
        "ready": server.ready,
        "trouble": cut(told(server.trouble)),
        "losses": [cut(told(loss)) for loss in server.losses[:20]],
    }


def stream_object(stream: StreamStatus) -> dict[str, Any]:
    found = camel_case({name: value for name, value in asdict(stream).items() if name != "newest"})
    durability = durability_of((stream,))
    return found | {"durability": None if durability is None else durability.at_least}


def update_object(update: UpdateInfo) -> dict[str, Any]:
    """Return what an update that runs is doing. Anything that a Rebaser server would not report is left out."""
    stage = update.stage if update.stage in STAGES else None
    plan = update.plan if update.plan in PLANS else None
    done, total, wave = (one if type(one) is int else None for one in (update.done, update.total, update.wave))
    seconds = update.seconds if type(update.seconds) in (int, float) else 0.0
    tag = update.spark_tag if type(update.spark_tag) is str and TAG.fullmatch(update.spark_tag) else None
    return {
        "done": done or 0,
        "total": total,
        "seconds": seconds,
        "stage": stage,
        "plan": plan,
        "wave": wave,
        "sparkTag": tag,
    }


def activity_object(row: ActiveChangeSet) -> dict[str, Any]:
    """Return what a change set is doing."""
    update = row.update
    return {
        "workspaceId": row.workspace,
        "changeSetId": row.change_set,
        "state": row.activity,
        "pending": row.pending,
        "hasTask": row.has_task,
        "lastCommit": row.last_commit,
        "lastCommitTime": time_text(datetime.fromtimestamp(row.committed_at, UTC)) if row.last_commit else None,
        "commitsPerSecond": round(row.commits_per_second, 3),
        "waiting": round(row.waiting, 1),
        "debt": row.debt,
        "update": None if update is None else update_object(update),
        "owner": cut(row.owner, 200),
        "errors": row.errors,
        "problem": cut(told(row.problem)),
    }


def branch_object(info: BranchInfo) -> dict[str, Any]:
    """Return where a change set comes from, and where it stands."""
    return {
        "workspaceId": info.workspace,
        "changeSetId": info.change_set,
        "lastCommit": info.sequence,
        "lastCommitTime": time_text(info.time),
        "status": info.status,
        "from": None if info.origin is None else {"changeSetId": info.origin, "position": info.origin_sequence},
        "target": info.target,
        "base": info.base or None,
        "changes": info.changes,
        "conflicts": info.conflicts,
        "behind": info.behind,
        "protected": info.protected,
        "owner": cut(info.owner, 200),
        "errors": info.errors,
        "follow": None if info.target is None else info.follow,
    }


# -- values and definitions ------------------------------------------------------------------------------------------


_ENCODER = json.JSONEncoder(ensure_ascii=False)
# Characters that reorder others, or are invisible. They are shown as JSON escapes, which have the same meaning, so that
# no value looks like another. Joiners are not escaped, because some scripts and emoji need them.
_UNSEEN = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def json_text(value: object) -> str:
    return seen_text(json.dumps(value, ensure_ascii=False))


def seen_text(text: str) -> str:
    """Return a text in which invisible characters are replaced by escapes."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_start(value: object, most: int) -> str:
    """Return the text of a value's JSON, cut at `most` characters. The rest of a large value is not encoded."""
    if not values_shown():
        return kind_of(value)
    if isinstance(value, str):
        return cut(json_text(value[:most]), most)  # quotes make it too long if something is left out
    found, length = list[str](), 0
    for part in _ENCODER.iterencode(value):
        part = seen_text(part)  # noqa: PLW2901
        found.append(part)
        length += len(part)
        if length > most:
            break
    return cut("".join(found), most)


def short_text(value: Value) -> str:
    """Return a value as it stands in a table."""
    return "" if value.state in (State.ERROR, State.UNSET) else json_start(value.value, MAX_CELL)


def full_text(value: Value) -> dict[str, Any] | None:
    """Return the text of a value, and how many characters it has in all; None without a value."""
    if value.state in (State.ERROR, State.UNSET):
        return None
    text = json_lines(value.value)
    return text_start(text, len(text))


def json_lines(value: object) -> str:
    """Return the text of a value's JSON, in lines."""
    return seen_text(json.dumps(value, ensure_ascii=False, indent=2)) if values_shown() else kind_of(value)


def text_start(text: str, length: int) -> dict[str, Any]:
    """Return the beginning of a text, and whether this is all. A browser counts characters in another way, and so could
    not tell by the length."""
    return {"text": text[:MAX_VALUE], "length": length, "whole": len(text) <= MAX_VALUE}


def payload_object(request: object, size: int) -> dict[str, Any]:
    """Return the text of what a client sent: JSON, or bytes that could not be read. If values are hidden, it is empty,
    and its length is that of its `size` bytes, rounded up."""
    if not values_shown():
        return text_start("", size_told(size))
    if isinstance(request, bytes):
        return text_start(repr(request[: MAX_VALUE + 1])[2:-1], size)
    text = json_lines(request)
    return text_start(text, len(text))


def fault_object(fault: Fault | None) -> dict[str, Any] | None:
    return None if fault is None else {"code": fault.code, "message": cut(told(fault.message)), "origin": fault.origin}


def update_line(update: Update) -> bytes:
    """Return a definition as an update in a line of JSON, as `rebaser enqueue --file` reads it. Raises
    `UnprocessableError` if values are hidden."""
    need_values()
    return dumps(JSON, update.to_wire()) + b"\n"


def definition_text(definition: Update | None, most: int = MAX_CELL) -> str | None:
    """Return a definition in one line: a value as JSON, a formula behind `=`, or a function with its inputs."""
    if definition is None or isinstance(definition, Remove):
        return None
    if isinstance(definition, Set):
        return json_start(definition.value, most)
    if not isinstance(definition, Derive):
        return "(unset)"
    expression = definition.params.get("expr")
    if isinstance(expression, str) and values_shown():
        return cut(f"= {seen_text(expression)}", most)
    wire = definition.to_wire()
    parts = [wire["inputs"], *([_params(definition)] if wire["params"] else [])]
    return cut(" ".join(["=", definition.function, *map(json_text, parts)]), most)


def definition_object(definition: Update | None) -> dict[str, Any] | None:
    """Return a definition with its parts; None for a removal."""
    if definition is None or isinstance(definition, Remove):
        return None
    found: dict[str, Any] = {"op": type(definition).__name__.lower(), "text": definition_text(definition, MAX_VALUE)}
    if isinstance(definition, Derive):
        found["function"] = definition.function
        found["isPlain"] = set(definition.params) <= {"expr"}  # the text shows all of its parameters
        params = seen_text(json.dumps(_params(definition), ensure_ascii=False, indent=2))
        found["params"] = cut(params, MAX_VALUE)
        found["inputs"] = [_input(name, given) for name, given in list(definition.inputs.items())[:MAX_INPUTS]]
        found["inputCount"] = len(definition.inputs)
        found["isWhole"] = (  # otherwise, who edits it would delete the rest
            len(params) <= MAX_VALUE
            and len(definition.inputs) <= MAX_INPUTS
            and all(one["count"] == len(one["sources"]) for one in found["inputs"])
        )
    return found


def _params(definition: Derive) -> dict[str, Any]:
    """Return the parameters of a function, or only their kinds: a formula contains values, too."""
    if values_shown():
        return dict(definition.params)
    return {name: "formula" if name == "expr" else kind_of(one) for name, one in definition.params.items()}


def _input(name: str, given: Any) -> dict[str, Any]:
    one = isinstance(given, (str, Match))
    sources = [given] if one else list(given)
    return {
        "name": name,
        "single": one,
        "count": len(sources),
        "sources": [
            {"match": source.glob} if isinstance(source, Match) else {"id": source} for source in sources[:MAX_INPUTS]
        ],
    }


def change_object(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "before": definition_text(change.before),
        "after": definition_text(change.after),
        "known": change.known,
    }


# -- commits -----------------------------------------------------------------------------------------------------------


def request_object(decision: Decision, author: Authorship) -> dict[str, Any]:
    return {
        "requestId": cut(decision.request_id, 200),
        "outcome": decision.outcome.value,
        "updates": decision.performed,
        "author": cut(author.author, 200),
        "message": cut(told(author.message)),
        "code": cut(decision.code, 200) or None,
        "reason": cut(told(decision.message)),
    }


def entry_object(entry: LogEntry) -> dict[str, Any]:
    """Return a commit as a row of the log, with three of its requests: first those that changed something."""
    commit = entry.commit
    origin = commit.origin or commit.source
    marking = commit.marking
    first = sorted(entry.requests, key=lambda one: one[0].outcome is not Outcome.SUCCESS)[:3]
    return {
        "position": entry.sequence,
        "time": time_text(entry.time),
        "kind": entry.kind.value,
        "owner": cut(commit.owner, 200),
        "changes": None if commit.delta_blob is not None else len(commit.delta),
        "covers": commit.covers,
        "bytes": size_told(_bytes(commit)),
        "trace": trace_id({TRACEPARENT: commit.traceparent}),
        "from": None if origin is None else {"changeSetId": origin.change_set, "position": origin.sequence},
        "reverts": None if entry.reverts is None else {"first": entry.reverts.first, "last": entry.reverts.last},
        "mark": None if marking is None else _mark(marking),
        "requestCount": len(entry.requests),
        "requests": [request_object(*request) for request in first],
    }


def _bytes(commit: Commit) -> int:
    """Return the size of a commit, with the blobs that have its edits or results."""
    return commit.size + sum(blob.size for blob in commit.folded_blobs)


def trace_id(headers: Mapping[str, str]) -> str | None:
    """Return the id of the trace to which a message with these headers belongs; None if there is none."""
    context = read_trace(headers)
    return None if context is None else f"{context.trace_id:032x}"


def _mark(marking: Any) -> str:
    if marking.status is not None:
        return {"open": "reopened", "deleted": "deleted"}.get(marking.status.value, f"closed ({marking.status.value})")
    return "protected" if marking.protected else "no longer protected"


def commit_object(entry: LogEntry) -> dict[str, Any]:
    """Return a commit with its requests."""
    commit = entry.commit
    return entry_object(entry) | {
        "id": commit.id,
        "previous": commit.previous or None,
        "requests": [request_object(*request) for request in entry.requests[:MAX_REQUESTS]],
        "checkpoint": None if commit.checkpoint is None else commit.checkpoint.sequence,
    }


def blame_object(blame: Blame) -> dict[str, Any]:
    """Return who last defined a value, and the commits that copied the definition from there, the newest first."""
    copies = [
        {
            "changeSetId": one.change_set,
            "position": one.entry.sequence,
            "kind": one.entry.kind.value,
            "request": None if one.request is None else request_object(*one.request),
        }
        for one in blame.copies
    ]
    return {
        "changeSetId": blame.change_set or None,
        "position": blame.sequence or None,
        "time": None if blame.entry is None else time_text(blame.entry.time),
        "request": None if blame.request is None else request_object(*blame.request),
        "copies": copies,
        "lost": blame.lost or None,
    }


def cause_object(blame: Blame, commit: int) -> dict[str, Any]:
    """Return the request that changed a value in `commit`: the newest one that defined it, or copied its definition."""
    made = blame.copies[0] if blame.copies else blame
    return {
        "id": blame.id,
        "position": commit,
        "time": None if made.entry is None else time_text(made.entry.time),
        "request": None if made.request is None else request_object(*made.request),
    }
