"""`/dvu`: the updates of derived values that run or are due. `/dvu/reasons`: why the first ones that are due wait.
`/change-sets/…/updates`: the updates of one change set.

Servers report how long the stages of recent updates took; this is lost when a server ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

import anyio

from rebaser.console.access.hiding import told, told_start
from rebaser.console.api.values import base_path
from rebaser.console.live.hub import Seen
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import STAGES, activity_object, cut, time_text
from rebaser_client import LogEntry, NotConnectedError
from rebaser_client.admin.explanations import Explanation
from rebaser_client.admin.fleet import ActiveChangeSet
from rebaser_core.commit import Kind
from rebaser_core.errors import RebaserError
from rebaser_core.explain.facts import ServerFacts

EXPLAINED = 8  # change sets of a page whose reasons are looked up; each takes about a dozen requests to NATS
UPDATES = 20  # the newest updates of one change set
SCANNED = 500  # commits that are read to find them
SCAN = 3.0  # seconds that this may take
STATES = {  # by the code of the reason
    "dvu_put_off": "put off",
    "dvu_waiting": "failing",
    "dvu_running": "updating",
    "dvu_hangs": "updating",
}


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the change sets with an update that runs or is due: the longest first."""
    offset, limit = given.page()
    seen = await console.hub.seen()
    rows, counts = _rows(seen, given)
    servers = {
        (update.workspace, update.change_set): server.id for server in seen.view.servers for update in server.updates
    }
    return {
        "problem": seen.problem,
        "at": seen.view.at,
        "counts": counts,
        "sparkUi": console.options.spark_ui or None,
        "matching": len(rows),
        "offset": offset,
        "limit": limit,
        "engines": [
            {"server": cut(one.id, 200), "dvu": cut(told_start(one.dvu), 200)} for one in seen.view.servers[:100]
        ],
        "rows": [
            activity_object(row) | {"server": cut(servers.get((row.workspace, row.change_set), ""), 200)}
            for row in rows[offset : offset + limit]
        ],
    }


def _rows(seen: Seen, given: Given) -> tuple[list[ActiveChangeSet], dict[str, int]]:
    """Return the change sets that match, and their numbers by state."""
    words, state = given.text("q").lower().split(), given.choice("state", ("all", "running", "due"))
    found = [
        row
        for row in seen.view.change_sets
        if (row.debt or row.update is not None)
        and all(word in f"{row.workspace}/{row.change_set}".lower() for word in words)
    ]
    running = [row for row in found if row.update is not None]
    due = [row for row in found if row.update is None]
    running.sort(key=lambda row: (-row.update.seconds if row.update else 0, row.workspace, row.change_set))
    due.sort(key=lambda row: (row.committed_at, row.workspace, row.change_set))
    rows = {"all": running + due, "running": running, "due": due}
    return rows[state], {name: len(some) for name, some in rows.items()}


async def read_reasons(console: Console, given: Given) -> Answer:
    """Return why updates of the same page of `/dvu` wait, by the names of the first `EXPLAINED` change sets."""
    offset, limit = given.page()
    seen = await console.hub.seen()
    rows, _ = _rows(seen, given)
    waiting = [row for row in rows[offset : offset + limit] if row.update is None][:EXPLAINED]
    client, found = await console.client(), dict[str, Answer]()

    async def explain(row: ActiveChangeSet) -> None:
        try:
            reason = _reason(await client.explain(row.workspace, row.change_set))
        except RebaserError as error:
            reason = {"state": "due", "code": error.code, "text": cut(told(error.message)), "advice": ""}
        found[f"{row.workspace}/{row.change_set}"] = reason

    async with anyio.create_task_group() as group:
        for row in waiting:
            group.start_soon(explain, row)
    return {"at": seen.view.at, "reasons": found}


def _reason(found: Explanation) -> Answer:
    """Return the most likely reason why the update of a change set waits, and what its owner reports."""
    first = next((reason for reason in found.reasons if reason.waits), found.reasons[0])
    attempt, owner = None if found.facts.log is None else found.facts.log.attempt, found.facts.owner
    waits = owner is not None and owner[1].update == "waiting"
    return {
        "state": STATES.get(first.code, "due" if first.waits else "quiet"),
        "code": first.code,
        "text": cut(told_start(first.text)),
        "advice": cut(first.advice),
        "server": "" if owner is None else cut(owner[0].id, 200),
        "error": "" if owner is None or not waits else cut(told(owner[1].trouble)),
        "failures": owner[1].failures if owner is not None else 0,
        "retryIn": round(owner[1].retry_in, 1) if owner is not None and waits else None,
        "deaths": attempt.deaths if attempt is not None and attempt.what == "update" else 0,
    }


async def read_updates(console: Console, given: Given) -> Answer:
    """Return what the update of a change set does or waits for, and the newest updates in its log."""
    key, client = given.key, await console.client()
    noted, updates, complete = list[Noted](), 0, False
    with anyio.move_on_after(SCAN):
        async with aclosing(client.log(key.workspace, key.change_set)) as commits:
            async for entry in commits:
                noted.append(Noted.of(entry))
                updates += noted[-1].covers is not None
                if len(noted) >= SCANNED or updates > UPDATES:
                    break
            else:
                complete = True
    if not noted and not complete:  # otherwise, there would seem to be none
        raise NotConnectedError("NATS has not answered in time")
    found = await client.explain(key.workspace, key.change_set)
    return {
        "now": _reason(found),
        "rows": update_rows(noted, stage_times(found.facts.servers), complete=complete),
        "position": noted[0].position if noted else 0,
        "scanned": len(noted),
        "complete": complete,
    }


@dataclass(frozen=True, slots=True)
class Noted:
    """What is kept of a commit, which may be large. `covers` is None unless it is an update: then it is the position up
    to which derived values are up to date. `makes_due`: whether it makes an update due."""

    position: int
    time: datetime
    server: str
    covers: int | None
    values: int | None
    makes_due: bool

    @classmethod
    def of(cls, entry: LogEntry) -> "Noted":
        commit = entry.commit
        covers = entry.sequence if commit.covers is None else commit.covers
        return cls(
            entry.sequence,
            entry.time,
            cut(commit.owner, 200),
            covers if entry.kind is Kind.DVU else None,
            None if commit.delta_blob is not None else len(commit.delta),
            commit.has_edits or bool(commit.recompute),
        )


def stage_times(servers: Iterable[ServerFacts]) -> dict[int, Answer]:
    """Return the duration of each stage in seconds, by the position of the update. Updates that no server remembers
    are missing."""
    return {
        update.commit: {stage: update.stages[stage] for stage in STAGES if stage in update.stages}
        for server in servers
        if server.about is not None
        for update in server.about.recent_updates
    }


def update_rows(commits: Sequence[Noted], stages: Mapping[int, Answer], *, complete: bool) -> list[Answer]:
    """Return the updates among `commits`, the newest first, each with the edits that no earlier update had covered.
    `stages` is what `stage_times` returns.

    `waited` is the time from the oldest of these edits to the update. It is None if that edit may be missing in
    `commits`, which is so for the oldest update unless `commits` are `complete`.
    """
    updates = [(one, one.covers) for one in commits if one.covers is not None]
    rows: list[Answer] = []
    for index, (one, covers) in enumerate(updates[:UPDATES]):
        known = complete or index + 1 < len(updates)
        before = updates[index + 1][1] if index + 1 < len(updates) else 0
        edits = [edit.time for edit in commits if before < edit.position <= covers and edit.makes_due]
        rows.append(
            {
                "position": one.position,
                "time": time_text(one.time),
                "server": one.server,
                "covers": covers,
                "edits": len(edits) if known else None,
                "waited": _seconds(min(edits), one.time) if known and edits else None,
                "values": one.values,
                "stages": stages.get(one.position),
            }
        )
    return rows


def _seconds(then: datetime, now: datetime) -> float:
    return round(max((now - then).total_seconds(), 0.0), 3)


RESOURCES = (
    Resource("/dvu", read, live=True, query=("q", "state", "offset", "limit")),
    Resource("/dvu/reasons", read_reasons),
    Resource(base_path("/updates"), read_updates),
)
