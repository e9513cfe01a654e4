"""The playground of `rebaser dev`: checks a formula while somebody types it, sends an edit and tells how long it took,
and loads the graph of the demo.

Only `rebaser dev` gives a console the `Playground` that does the work; every other console has none.
"""

import time
from collections.abc import Mapping
from typing import Any

from anyio import to_thread

from rebaser.console.access.options import Playground
from rebaser.console.api.edits import TIMEOUT, text_of, update_of
from rebaser.console.api.values import MAX_ID, value_row
from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Action, Answer, Console, Given, Resource
from rebaser_client import Success
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.updates import Match, Update

MAX_FORMULA = 4000  # characters
MAX_INPUTS = 50  # that are shown
DEMO = ("demo", "main")


def playground_of(console: Console) -> Playground:
    if console.options.playground is None:
        raise UnprocessableError("only the console of `rebaser dev` has a playground", code="no_such_playground")
    return console.options.playground


async def check(console: Console, given: Given) -> Answer:
    """Return what is wrong with a formula, if anything, and its inputs as the change set has them."""
    play, key = playground_of(console), ChangeSetKey.of(given.text("workspace"), given.text("changeSet"))
    id_, formula = given.text("id", "value", most=MAX_ID), given.text("formula", most=MAX_FORMULA)
    try:
        found = await to_thread.run_sync(play.derive, id_ or "value", formula)
    except UnprocessableError as error:
        return {"problem": error.message, "inputs": []}
    try:
        loaded = await console.states.get(await console.client(), key)
    except UnprocessableError:
        loaded = None  # the edit creates the change set
    return {
        "problem": "",
        "inputs": [_input(loaded, name, one) for name, one in list(found.inputs.items())[:MAX_INPUTS]],
    }


def _input(loaded: BrowsedState | None, name: str, one: object) -> Answer:
    if isinstance(one, Match) or loaded is None:
        return {
            "name": name,
            "id": one.glob if isinstance(one, Match) else one,
            "state": "pattern" if loaded else "missing",
        }
    return {"name": name, **value_row(loaded, str(one))}


async def send(console: Console, _: Given, body: Mapping[str, Any]) -> Answer:
    """Send one edit; return its commit, and the milliseconds until it was applied. It overwrites whatever the value is
    by then, as the page says: the page shows no value that somebody could rely on."""
    play = playground_of(console)
    key = ChangeSetKey.of(text_of(body, "workspace", 64), text_of(body, "changeSet", 64))
    id_ = text_of(body, "id", MAX_ID)
    if "formula" in body:
        update: Update = await to_thread.run_sync(play.derive, id_, text_of(body, "formula", MAX_FORMULA))
    else:
        update = update_of(body, id_)
    return await _send(console, key, [update], "playground")


async def demo(console: Console, _: Given, __: Mapping[str, Any]) -> Answer:
    """Send the graph of the demo, to a change set of its own."""
    updates = await to_thread.run_sync(playground_of(console).demo)
    return await _send(console, ChangeSetKey(*DEMO), updates, "the graph of the demo") | {
        "workspaceId": DEMO[0],
        "changeSetId": DEMO[1],
    }


async def _send(console: Console, key: ChangeSetKey, updates: list[Update], message: str) -> Answer:
    client, began = await console.client(), time.perf_counter()
    response = await client.enqueue_updates_with_reply(
        key.workspace, key.change_set, updates, message=message, timeout=TIMEOUT
    )
    assert isinstance(response.status, Success)  # noqa: S101 - the client raises any other status
    return {"commit": response.status.commit, "updates": len(updates), "ms": _ms(began)}


async def covered(console: Console, given: Given) -> Answer:
    """Wait until derived values are up to date as of a commit; return whether they are, and the milliseconds."""
    playground_of(console)
    key, commit = ChangeSetKey.of(given.text("workspace"), given.text("changeSet")), given.number("commit", 0)
    client, began = await console.client(), time.perf_counter()
    try:
        await client.wait_covered(key.workspace, key.change_set, commit, timeout=TIMEOUT)
    except TimeoutError:
        return {"covered": False, "ms": _ms(began)}
    return {"covered": True, "ms": _ms(began)}


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


RESOURCES = (Resource("/playground/check", check), Resource("/playground/covered", covered))
ACTIONS = (
    Action("/playground/send", send, logged=("workspace", "changeSet", "id")),
    Action("/playground/demo", demo, logged=()),
)
