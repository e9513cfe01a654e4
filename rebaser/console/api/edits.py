"""The actions on change sets and branches: edit, branch, rebase, settle conflicts, apply, revert, recompute, close,
reopen.

Invariant: an action names the position that its page showed, where that matters. So what is applied, settled or edited
is what somebody saw, and anything else is refused.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from rebaser.console.api.values import MAX_ID, base_path
from rebaser.console.resources import Action, Answer, Console, Given, invalid
from rebaser_client import EnqueueUpdatesResponse, Success
from rebaser_client.operations.reverts import RevertOptions
from rebaser_core.ids import check_token
from rebaser_core.updates import Recompute, Update, parse_recompute, parse_update

TIMEOUT = 60.0  # seconds
MAX_IDS = 500  # conflicts that are settled at once
STRATEGIES = ("record", "ours", "theirs")
Body = Mapping[str, Any]


def text_of(body: Body, name: str, most: int, default: str | None = None) -> str:
    """Return the text `name` of a body. Raises `UnprocessableError` if it is missing or too long."""
    found = body.get(name, default)
    if not isinstance(found, str) or len(found) > most:
        raise invalid(f"{name} has to be a text of up to {most:,} characters")
    return found


def flag_of(body: Body, name: str) -> bool:
    found = body.get(name, False)
    if not isinstance(found, bool):
        raise invalid(f"{name} has to be true or false")
    return found


def position_of(body: Body, name: str = "at") -> int:
    """Return the position that the page showed."""
    found = body.get(name)
    if type(found) is not int or not 0 < found < 2**63:  # a larger one would make a request that no server can read
        raise invalid(f"{name} has to be the position that was shown")
    return found


def _who(body: Body) -> RevertOptions:
    """Return who asks, and why."""
    author, message = text_of(body, "author", 128, ""), text_of(body, "message", 1024, "")
    return RevertOptions(author=author or None, message=message, timeout=TIMEOUT)


def _done(response: EnqueueUpdatesResponse) -> Answer:
    status = response.status
    assert isinstance(status, Success)  # noqa: S101 - the client raises any other status
    return {"commit": status.commit, "updates": status.performed, "conflicts": status.conflicts}


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        forms = 'write a number with a point, as in 7.9, and put text in quotes, as in "tea"'
        raise invalid(f"{what} is not JSON: {str(error)[:200]}; {forms}") from None


def update_of(body: Body, id_: str) -> Update:
    """Return the edit of the value `id_` in a body: a `value`, a `definition`, or `remove`."""
    if flag_of(body, "remove"):
        return parse_update({"op": "remove", "id": id_})
    if "definition" in body:
        found = _json(text_of(body, "definition", 1 << 20), "the definition")
        if not isinstance(found, dict):
            raise invalid("a definition is an object with function, inputs and params")
        return parse_update({**found, "op": "derive", "id": id_})
    return parse_update({"op": "set", "id": id_, "value": _json(text_of(body, "value", 1 << 20), "the value")})


async def edit(console: Console, given: Given, body: Body) -> Answer:
    """Define or remove one value. The edit is refused if the value was redefined after the log position that the page
    showed."""
    key, update, at = given.key, update_of(body, text_of(body, "id", MAX_ID)), position_of(body)
    client = await console.client()
    return _done(
        await client.enqueue_updates_with_reply(key.workspace, key.change_set, [update], expect_at=at, **_who(body))
    )


async def branch(console: Console, given: Given, body: Body) -> Answer:
    """Create a branch of the change set, at the position that was shown if the body has one."""
    at = position_of(body) if "at" in body else None
    key, name = given.key, check_token(body.get("name"), "the name of the branch")
    client = await console.client()
    who = _who(body)
    info = await client.create_branch(
        *(key.workspace, name, key.change_set),
        at=at,
        author=who["author"],
        message=who["message"],
        timeout=TIMEOUT,
    )
    return {"changeSetId": info.change_set, "commit": info.sequence}


async def rebase(console: Console, given: Given, body: Body) -> Answer:
    """Bring what the target changed into the branch."""
    key, strategy = given.key, body.get("strategy", "record")
    if strategy not in STRATEGIES:
        raise invalid(f"strategy has to be one of {', '.join(STRATEGIES)}")
    client = await console.client()
    found = await client.rebase(
        key.workspace, key.change_set, strategy=cast("Literal['record', 'ours', 'theirs']", strategy), **_who(body)
    )
    return {"commit": found.commit, "base": found.base, "updates": found.updates, "conflicts": found.conflicts}


async def resolve(console: Console, given: Given, body: Body) -> Answer:
    """Settle conflicts: take the definitions of one side, or give each a new value or definition."""
    key, ids, at = given.key, body.get("ids"), position_of(body)
    if not isinstance(ids, list) or not 0 < len(ids) <= MAX_IDS or not all(isinstance(id_, str) for id_ in ids):
        raise invalid(f"ids has to be a list of up to {MAX_IDS} ids")
    client = await console.client()
    if "take" not in body:
        updates = [update_of(body, id_) for id_ in ids]
        response = await client.resolve(key.workspace, key.change_set, updates=updates, at=at, **_who(body))
    else:
        take = text_of(body, "take", 64)
        response = await client.resolve(key.workspace, key.change_set, ids, take=take, at=at, **_who(body))
    return _done(response)


async def apply(console: Console, given: Given, body: Body) -> Answer:
    """Apply the branch, as of the position that was shown, to its target. It is refused if the target was edited after
    `targetAt`, the position of the target that was shown."""
    key, at, target_at = given.key, position_of(body), position_of(body, "targetAt")
    client = await console.client()
    response = await client.apply(
        *(key.workspace, key.change_set),
        at=at,
        expect_at=target_at,
        check=flag_of(body, "check"),
        keep=flag_of(body, "keep"),
        **_who(body),
    )
    return _done(response)


async def revert(console: Console, given: Given, body: Body) -> Answer:
    """Revert the edits of the commit `at`, or those of one `request` in it. With `of`, it is a commit of that target
    of the branch."""
    key, at = given.key, position_of(body)
    request, of = (text_of(body, name, 512, "") or None for name in ("request", "of"))
    client = await console.client()
    return _done(await client.revert(key.workspace, key.change_set, at, request=request, of=of, **_who(body)))


async def close(console: Console, given: Given, body: Body) -> Answer:
    """Close the change set: it accepts no edits."""
    client = await console.client()
    return _done(await client.close_change_set(given.key.workspace, given.key.change_set, **_who(body)))


async def reopen(console: Console, given: Given, body: Body) -> Answer:
    """Make a closed change set accept edits again."""
    client = await console.client()
    return _done(await client.reopen_change_set(given.key.workspace, given.key.change_set, **_who(body)))


async def recompute(console: Console, given: Given, body: Body) -> Answer:
    """Compute derived values again, although their inputs did not change: those of a `function`, or all of them."""
    function = text_of(body, "function", MAX_ID, "") or None
    request = parse_recompute(Recompute(function).to_wire())
    client = await console.client()
    key = given.key
    return _done(
        await client.enqueue_updates_with_reply(key.workspace, key.change_set, (), recompute=request, **_who(body))
    )


RESOURCES = ()
_ACTS = (edit, branch, rebase, resolve, apply, revert, close, reopen)
ACTIONS = (
    *(Action(base_path(f"/{act.__name__}"), act) for act in _ACTS),
    Action(base_path("/recompute"), recompute, logged=("author", "function")),
)
