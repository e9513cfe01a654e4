"""`/dead-letters`: a page of the dead letters. `/dead-letters/codes`: their numbers. `/dead-letter`: one, with its
request. Redriving and dropping them.

Invariant: an action on several dead letters names their number, which the viewer typed. Each of them succeeds or fails
by itself. After `ACTING` seconds, no further ones are begun, and the answer tells how many are left, and of which one
it is not known whether it was done.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import anyio

from rebaser.console.access.hiding import told, values_shown
from rebaser.console.resources import Action, Answer, Console, Given, Resource, invalid
from rebaser.console.shapes import cut, payload_object, text_start, time_text, trace_id
from rebaser_client import DeadLetter, DeadLetterBox, NotConnectedError
from rebaser_client.cooperative import run_offloaded
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.messages.dead_letter import readable_request

PAGE = 50
SCAN = 3.0  # seconds that a search may take
MAX_COUNTED, MAX_CODES = 5000, 20  # dead letters that are counted by code; codes
COUNT_KEPT = 5.0  # seconds
MAX_LETTERS = 100  # per action
ACTING = 30.0  # seconds that an action on dead letters may take
MAX_DECODED = 1 << 20  # bytes of a request that is shown
LATE = "NATS has not answered in time"
LAST_MS = 253_402_300_799_999  # the end of the year 9999


async def read(console: Console, given: Given) -> Answer:
    """Return a page of dead letters, the oldest first; `after` is the number of the last one of the page before."""
    names = [given.text(name, most=64) or None for name in ("workspace", "changeSet")]
    code, after = given.text("code", most=64) or None, given.number("after", 0)
    limit = given.number("limit", PAGE, least=1, most=200)
    client = await console.client()
    if names[1] is not None and names[0] is None:
        raise invalid("changeSet needs workspace")
    letters = client.dead_letters.find(names[0], names[1], code=code, after=after)
    rows, complete = await _take(letters, limit)
    seen = await console.hub.seen()
    if not rows and not complete and (seen.problem or code is None):  # otherwise, there would seem to be none
        raise NotConnectedError(seen.problem or LATE)
    return {
        "actions": console.options.actions,
        "at": seen.view.at,
        "total": seen.view.dead_letters,
        "rows": [_row(letter) for letter in rows],
        "next": None if complete or not rows else rows[-1].sequence,
        "complete": complete or len(rows) == limit,
    }


async def _take(letters: AsyncIterator[DeadLetter], limit: int) -> tuple[list[DeadLetter], bool]:
    rows: list[DeadLetter] = []
    with anyio.move_on_after(SCAN):
        async with aclosing(letters) as all_letters:  # type: ignore[type-var]
            async for letter in all_letters:
                if len(rows) == limit:
                    return rows, False
                rows.append(letter)
        return rows, True
    return rows, False


async def read_codes(console: Console, given: Given) -> Answer:
    """Return the number of dead letters by code, the most frequent one first. At most `MAX_COUNTED` are looked at."""
    names = [given.text(name, most=64) or None for name in ("workspace", "changeSet")]
    box = (await console.client()).dead_letters

    async def count() -> Answer:
        codes, complete = Counter[str](), False
        with anyio.move_on_after(SCAN):
            async with aclosing(box.find(names[0], names[1])) as letters:  # type: ignore[type-var]
                async for letter in letters:
                    codes[cut(letter.code, 64)] += 1
                    if codes.total() == MAX_COUNTED:
                        break
                else:
                    complete = True
        if not codes and not complete:  # otherwise, there would seem to be none
            raise NotConnectedError(LATE)
        rows = [{"code": code, "count": number} for code, number in codes.most_common(MAX_CODES)]
        return {"codes": rows, "counted": codes.total(), "complete": complete}

    return await console.kept.get(("codes", *names), count, lambda _: 10_000, seconds=COUNT_KEPT)


async def read_one(console: Console, given: Given) -> Answer:
    """Return a dead letter with its headers and its request, as far as it can be read."""
    sequence, box = given.number("sequence", 0), (await console.client()).dead_letters
    letter = await box.get(sequence) if sequence else None
    if letter is None:
        raise UnprocessableError("the dead letter is gone: it was redriven or dropped", code="no_such_dead_letter")
    return {
        **_row(letter),
        "actions": console.options.actions,
        "trace": trace_id(letter.headers),
        "traceUrl": console.options.trace_url or None,
        "headers": {cut(name, 200): cut(told(value)) for name, value in list(letter.headers.items())[:100]},
        **await _request(box, letter),
    }


async def _request(box: DeadLetterBox, letter: DeadLetter) -> Answer:
    """Return the text of the request, the number of its bytes, and why it cannot be read, if it cannot."""
    if not values_shown():
        return {"problem": "values are hidden", "payload": payload_object(b"", letter.size)}
    try:
        payload = await box.payload(letter, max_bytes=MAX_DECODED) or b""
    except RebaserError as error:  # the blob is gone, which may be why it died, or it is too large
        return {"problem": cut(told(error.message)), "payload": text_start("", letter.size)}
    if len(payload) > MAX_DECODED:
        return {"problem": "it is too large to be shown", "payload": text_start("", len(payload))}
    return await run_offloaded(len(payload), _readable, letter, payload)


def _readable(letter: DeadLetter, payload: bytes) -> Answer:
    request = readable_request(letter, payload)
    if request is None:
        problem = "it is not a valid message; these are its bytes"
        return {"problem": problem, "payload": payload_object(payload, len(payload))}
    return {"problem": None, "payload": payload_object(request, len(payload))}


def _row(letter: DeadLetter) -> Answer:
    return {
        "sequence": letter.sequence,
        "workspaceId": letter.key.workspace,
        "changeSetId": letter.key.change_set,
        "requestId": cut(letter.request_id, 200),
        "code": cut(letter.code, 200),
        "reason": cut(told(letter.reason)),
        "attempts": letter.attempts,
        "redrive": letter.redrive,
        "server": cut(letter.server, 200),
        "time": time_text(datetime.fromtimestamp(min(letter.dead_at_ms, LAST_MS) / 1000, UTC)),
    }


# -- actions -----------------------------------------------------------------------------------------------------------


async def redrive(console: Console, _: Given, body: Mapping[str, Any]) -> Answer:
    """Send the requests of dead letters again."""
    return await _each(console, body, "redrive")


async def drop(console: Console, _: Given, body: Mapping[str, Any]) -> Answer:
    """Delete dead letters for good."""
    return await _each(console, body, "drop")


async def _each(console: Console, body: Mapping[str, Any], what: str) -> Answer:
    left, box = _sequences(body), (await console.client()).dead_letters
    done, gone, failed, unsure = 0, 0, list[Answer](), list[int]()
    with anyio.move_on_after(ACTING):
        while left:
            unsure = [left.pop(0)]
            try:
                if await _one(box, unsure[0], what):
                    done += 1
                else:
                    gone += 1
            except RebaserError as error:
                failed.append({"sequence": unsure[0], "code": error.code, "message": cut(told(error.message))})
            unsure = []
    return {"done": done, "gone": gone, "failed": failed, "unsure": unsure, "left": len(left)}


async def _one(box: DeadLetterBox, sequence: int, what: str) -> bool:
    """Redrive or drop a dead letter; return whether it was still there."""
    letter = await box.get(sequence)
    if letter is None:
        return False
    if what == "redrive":
        return await box.redrive(letter)
    await box.drop(letter)
    return True


def _sequences(body: Mapping[str, Any]) -> list[int]:
    found = body.get("sequences")
    if not isinstance(found, list) or not 0 < len(found) <= MAX_LETTERS or not all(map(_is_sequence, found)):
        raise invalid(f"sequences has to be a list of up to {MAX_LETTERS} numbers of dead letters")
    if len(set(found)) > 1 and body.get("count") != len(set(found)):
        raise invalid(f"type the number of dead letters, {len(set(found))}, to confirm this")
    return sorted(set(found))


def _is_sequence(one: object) -> bool:
    return type(one) is int and 0 < one < 2**63


RESOURCES = (
    Resource("/dead-letters", read),
    Resource("/dead-letters/codes", read_codes),
    Resource("/dead-letter", read_one),
)
ACTIONS = (
    Action("/dead-letters/redrive", redrive, logged=("sequences",)),
    Action("/dead-letters/drop", drop, logged=("sequences",)),
)
