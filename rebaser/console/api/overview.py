"""`/overview`: what the installation does, how a few numbers developed, and what needs attention."""

import heapq
from collections import Counter

from rebaser.console.live.hub import Seen
from rebaser.console.live.samples import EVERY, SPANS, Samples
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import activity_object, server_object, stream_object
from rebaser_client.admin.fleet import ActiveChangeSet, FleetView

URGENCY = ("unreadable", "waiting", "updating", "due", "busy", "owned")
MAX_URGENT = 12  # change sets
MAX_SERVERS = 100


def by_urgency(row: ActiveChangeSet) -> tuple[int, float, int, str, str]:
    """Return a key that sorts the most urgent change set first."""
    return URGENCY.index(row.activity), -row.waiting, -row.pending, row.workspace, row.change_set


async def read(console: Console, given: Given) -> Answer:
    """Return the overview. `span` is the number of minutes that the series cover."""
    span = given.choice("span", tuple(SPANS))
    seen = await console.hub.seen()
    view = seen.view
    return {
        "version": console.version,
        "actions": console.options.actions,
        "problem": seen.problem,
        "at": view.at,
        **_totals(view),
        "servers": [server_object(server) for server in view.servers[:MAX_SERVERS]],
        "serverCount": len(view.servers),
        "streams": [stream_object(stream) for stream in seen.streams],
        "changeSets": [activity_object(row) for row in heapq.nsmallest(MAX_URGENT, view.change_sets, key=by_urgency)],
        **_branches(seen),
        "series": _series(console.hub.samples, span, view.at),
    }


def _totals(view: FleetView) -> Answer:
    activities: Counter[str] = Counter(row.activity for row in view.change_sets)
    waiting = [row.waiting for row in view.change_sets if row.activity == "waiting"]
    return {
        "requestsPerSecond": round(view.requests_per_second, 2),
        "commitsPerSecond": round(view.commits_per_second, 2),
        "requests": view.requests,
        "oldestRequest": round(view.oldest_request, 1),
        "deadLetters": view.dead_letters,
        "tasks": None if view.tasks is None else {"pending": view.tasks.pending, "inFlight": view.tasks.in_flight},
        "total": view.total,
        "active": len(view.change_sets),
        "activities": {name: activities[name] for name in URGENCY},
        "due": sum(1 for row in view.change_sets if row.debt),
        "longestWaiting": round(max(waiting, default=0.0), 1),
    }


def _branches(seen: Seen) -> Answer:
    open_ = [info for info in seen.change_sets if info.status == "open"]
    return {
        "branches": sum(1 for info in open_ if info.target is not None),
        "branchesInConflict": sum(1 for info in open_ if info.conflicts),
        "withErrors": sum(1 for info in open_ if info.errors),
        "branchesBehind": sum(1 for info in open_ if info.behind),
    }


def _series(kept: Samples, span: str, now: float) -> Answer:
    samples = kept.of(span, now)
    return {
        "span": SPANS[span],
        "step": EVERY[span],
        "at": [round(one.at, 1) for one in samples],
        "requestsPerSecond": [round(one.requests_per_second, 1) for one in samples],
        "commitsPerSecond": [round(one.commits_per_second, 1) for one in samples],
        "requests": [one.requests for one in samples],
        "oldestRequest": [round(one.oldest_request, 1) for one in samples],
        "due": [one.due for one in samples],
        "deadLetters": [one.dead_letters for one in samples],
    }


RESOURCES = (Resource("/overview", read, live=True, query=("span",)),)
