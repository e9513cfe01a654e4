"""`/change-sets/…/queue`: a page of the requests that wait. `/queued`: one of them, with its content.

Invariant: one request is in memory at a time, however large the requests of a page are. A page ends early after
`MAX_BYTES` bytes or `MAX_SECONDS` seconds, but has at least one request.
"""

import time

from rebaser.console.access.hiding import values_shown
from rebaser.console.api.values import base_path
from rebaser.console.queued import queued_object, request_payload
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import payload_object
from rebaser_client.cooperative import run_offloaded
from rebaser_core.errors import UnprocessableError
from rebaser_core.messages import EnqueueUpdatesRequest

PAGE, MOST = 50, 200  # requests of a page
MAX_BYTES, MAX_SECONDS = 16 << 20, 2.0


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the queue, the oldest request first; `after` is the number of the last one before the page."""
    key, after = given.key, given.number("after", 0)
    limit = given.number("limit", PAGE, least=1, most=MOST)
    client = await console.client()
    rows, size, end = list[Answer](), 0, time.monotonic() + MAX_SECONDS
    while found := await client.queue(key.workspace, key.change_set, after=after, limit=1):
        if len(rows) == limit or (rows and (size > MAX_BYTES or time.monotonic() > end)):
            break
        [entry] = found
        rows.append(queued_object(entry, decided=False))
        after, size = entry.sequence, size + entry.size
    decided = await client.last_decided(key.workspace, key.change_set)
    return {
        "traceUrl": console.options.trace_url or None,
        "rows": [row | {"decided": row["sequence"] <= decided} for row in rows],
        "next": after if found else None,
    }


async def read_one(console: Console, given: Given) -> Answer:
    """Return a request with its content, as far as it can be read."""
    key, sequence = given.key, given.number("sequence", 0, least=1)
    client = await console.client()
    found = await client.queue(key.workspace, key.change_set, after=sequence - 1, limit=1)
    if not found or found[0].sequence != sequence:
        raise UnprocessableError("the request is no longer in the queue: it was decided", code="no_such_request")
    entry = found[0]
    row = queued_object(entry, decided=sequence <= await client.last_decided(key.workspace, key.change_set))
    content = entry.content
    if not values_shown():
        return row | {"problem": "values are hidden", "payload": payload_object(b"", entry.size)}
    if not isinstance(content, EnqueueUpdatesRequest):
        return row | {"payload": payload_object(b"", 0)}
    return row | {"payload": await run_offloaded(entry.size, request_payload, content, entry.size)}


RESOURCES = (Resource(base_path("/queue"), read), Resource(base_path("/queued"), read_one))
