"""`/change-sets/…`: one change set, live. `/explain`: why it waits. `/history-size`: how far its history reaches.
`/loading`: how far the loading of its values is."""

import time
from dataclasses import asdict

from rebaser.console.access.hiding import told_start
from rebaser.console.api.change_sets import index_of, row_object
from rebaser.console.api.values import base_path
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import cut, time_text
from rebaser_core.errors import UnprocessableError

MAX_REASONS = 20


async def read(console: Console, given: Given) -> Answer:
    """Return what the change set does, and where it stands."""
    key = given.key
    seen = await console.hub.seen()
    one = index_of(seen).find(key.workspace, key.change_set)
    if one is not None:
        return {"at": seen.view.at, "actions": console.options.actions, **row_object(one), "trouble": seen.problem}
    raise UnprocessableError(f"there is no change set {key.workspace}/{key.change_set}", code="no_such_change_set")


async def read_explanation(console: Console, given: Given) -> Answer:
    """Return why the change set waits, the most likely reason first. `at` is when this was asked."""
    key, at = given.key, time.time()
    found = await (await console.client()).explain(key.workspace, key.change_set)
    reasons = [
        {name: cut(told_start(text)) if isinstance(text, str) else text for name, text in asdict(reason).items()}
        for reason in found.reasons[:MAX_REASONS]
    ]
    return {"at": at, "waits": found.waits, "reasons": reasons}


async def read_loading(console: Console, given: Given) -> Answer:
    """Return how far the loading of the change set's values is; `stage` is None if they are not loaded now."""
    found = console.states.loading(given.key)
    if found is None:
        return {"stage": None}
    progress, seconds = found
    return {
        "stage": progress.stage,
        "done": progress.done,
        "total": progress.total,
        "bytes": progress.bytes,
        "seconds": round(seconds, 1),
    }


async def read_history_size(console: Console, given: Given) -> Answer:
    """Return how large the history of the change set is, and how far back it reaches."""
    key = given.key
    found = await (await console.client()).history_status(key.workspace, key.change_set)
    return {
        "commits": found.commits,
        "bytes": found.bytes,
        "oldest": found.oldest,
        "since": None if found.since is None else time_text(found.since),
        "taken": [{"changeSetId": name, "position": position} for name, position in found.taken[-20:]],
    }


RESOURCES = (
    Resource(base_path(), read, live=True),
    Resource(base_path("/explain"), read_explanation),
    Resource(base_path("/loading"), read_loading),
    Resource(base_path("/history-size"), read_history_size),
)
