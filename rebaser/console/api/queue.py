"""`/change-sets/…/queue`: a page of the requests that wait. `/queued`: one of them, with its content."""

from contextlib import aclosing

from rebaser.console.access.hiding import values_shown
from rebaser.console.api.values import base_path
from rebaser.console.queued import queued_object, request_payload
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import payload_object
from rebaser_client import RebaserClient
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesRequest

PAGE, MOST = 50, 200  # requests of a page; each is read by a call of its own


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the queue, the oldest request first; `after` is the number of the last one before the page."""
    key, after = given.key, given.number("after", 0)
    limit = given.number("limit", PAGE, least=1, most=MOST)
    client = await console.client()
    found = await client.queue(key.workspace, key.change_set, after=after, limit=limit + 1)
    decided = await _decided(client, key)
    rows = [queued_object(entry, decided=entry.sequence <= decided) for entry in found[:limit]]
    return {
        "traceUrl": console.options.trace_url or None,
        "rows": rows,
        "next": rows[-1]["sequence"] if len(found) > limit else None,
    }


async def _decided(client: RebaserClient, key: ChangeSetKey) -> int:
    """Return the sequence of the last decided request; 0 if there is none. Servers delete requests a little later."""
    async with aclosing(client.log(key.workspace, key.change_set)) as log:
        async for entry in log:
            applied = entry.commit.applied
            return 0 if applied is None else applied.sequence
    return 0


async def read_one(console: Console, given: Given) -> Answer:
    """Return a request with its content, as far as it can be read."""
    key, sequence = given.key, given.number("sequence", 0, least=1)
    client = await console.client()
    found = await client.queue(key.workspace, key.change_set, after=sequence - 1, limit=1)
    if not found or found[0].sequence != sequence:
        raise UnprocessableError("the request is no longer in the queue: it was decided", code="no_such_request")
    entry = found[0]
    row = queued_object(entry, decided=sequence <= await _decided(client, key))
    content = entry.content
    if not values_shown():
        return row | {"problem": "values are hidden", "payload": payload_object(b"", entry.size)}
    if not isinstance(content, EnqueueUpdatesRequest):
        return row | {"payload": payload_object(b"", 0)}
    return row | {"payload": request_payload(content, entry.size)}


RESOURCES = (Resource(base_path("/queue"), read), Resource(base_path("/queued"), read_one))
