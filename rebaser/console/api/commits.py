"""`/change-sets/…/commits` and `/history`: commits of a change set, or those that defined one value. `/commit`: one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from anyio import to_thread

from rebaser.console.api.values import MAX_ID, base_path
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import (
    change_object,
    commit_object,
    cut,
    definition_object,
    entry_object,
    fault_object,
    request_object,
    short_text,
)
from rebaser_client import Computed, LogEntry
from rebaser_client.log.changes import ShownCommit, by_request
from rebaser_core.values import State, Value

COMMITS = 50  # of a page
FOUND = 20  # commits of a value on a page of its history
MAX_CHANGES = 500  # maximum number of changes of one commit that are shown


async def read(console: Console, given: Given) -> Answer:
    """Return a page of commits, the newest first; `before` is the position of the last one of the page before."""
    key, before = given.key, given.number("before", 0)
    limit = given.number("limit", COMMITS, least=1, most=200)
    commits = (await console.client()).log(key.workspace, key.change_set, at=before - 1 if before else None)
    rows, complete = await _take(commits, limit)
    return {
        "traceUrl": console.options.trace_url or None,
        "rows": rows,
        "next": None if complete else rows[-1]["position"],
    }


async def read_history(console: Console, given: Given) -> Answer:
    """Return a page of commits that defined or removed a value, the newest first. Only so many commits are searched;
    `next` leads to the others."""
    key, id_, before = given.key, given.text("id", most=MAX_ID), given.number("before", 0)
    at = before - 1 if before else None
    page = await (await console.client()).value_history(key.workspace, key.change_set, id_, at=at, limit=FOUND)
    return {
        "rows": await to_thread.run_sync(_defining, page.entries, id_),
        "next": None if page.next is None else page.next + 1,
        "complete": page.next is None,
        "scanned": page.commits,
    }


def _defining(entries: Sequence[LogEntry], id_: str) -> list[Answer]:
    """Return commits that defined or removed a value, which may have many other edits, too."""
    found = []
    for entry in entries:
        after = [one for one in entry.commit.delta if one.id == id_ and not isinstance(one, Computed)][-1:]
        found.append(
            entry_object(entry)
            | {"requests": _makers(entry, id_), "after": definition_object(after[0]) if after else None}
        )
    return found


def _makers(entry: LogEntry, id_: str) -> list[Answer]:
    """Return the last three requests of a commit that defined or removed a value, the last one last."""
    made = [one for one in by_request(entry) if any(change.id == id_ for change in one.changes)]
    return [request_object(one.decision, one.author) for one in made[-3:]]


async def _take(commits: AsyncIterator[LogEntry], limit: int) -> tuple[list[Answer], bool]:
    """Return up to `limit` commits as rows, and whether these are all. No commit is kept, as it may be large."""
    rows: list[Answer] = []
    async with aclosing(commits) as all_commits:  # type: ignore[type-var]
        async for entry in all_commits:
            if len(rows) == limit:
                return rows, False
            rows.append(entry_object(entry))
    return rows, True


async def read_one(console: Console, given: Given) -> Answer:
    """Return the commit at a position, with its changes."""
    key, at = given.key, given.number("at", 0)
    shown = await (await console.client()).show(key.workspace, key.change_set, at or None)
    return {"traceUrl": console.options.trace_url or None, **commit_object(shown.entry), **_changes(shown)}


def _changes(shown: ShownCommit) -> Answer:
    room, requests = MAX_CHANGES, list[Answer]()
    for request in shown.requests:
        changes = request.changes[:room]
        room -= len(changes)
        requests.append(
            {
                "requestId": cut(request.decision.request_id, 200),
                "changes": [change_object(change) for change in changes],
                "changeCount": len(request.changes),
            }
        )
    return {
        "edits": requests[:200],
        "computed": [_computed(one) for one in shown.computed[:MAX_CHANGES]],
        "computedCount": len(shown.computed),
    }


def _computed(one: Computed) -> Answer:
    state = State.OK if one.fault is None else State.ERROR
    value = Value(one.value, state, one.fault)
    return {"id": one.id, "state": state.value, "text": short_text(value), "error": fault_object(one.fault)}


RESOURCES = (
    Resource(base_path("/commits"), read),
    Resource(base_path("/commit"), read_one),
    Resource(base_path("/history"), read_history),
)
