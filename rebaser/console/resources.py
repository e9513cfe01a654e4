"""What a handler of the JSON API gets and gives: parameters with bounds, and answers or errors as JSON.

Invariant: every parameter has a bound, and every list that an answer holds has one, too.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rebaser.console.access.hiding import told
from rebaser.console.access.options import ConsoleOptions
from rebaser.console.live.hub import Hub
from rebaser.console.reading.kept import Kept
from rebaser.console.reading.states import StateCache
from rebaser.console.shapes import cut
from rebaser_client import (
    NewErrors,
    NotConnectedError,
    RebaserClient,
    RequestConflicts,
    RequestRejected,
    UnresolvedConflicts,
)
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey

Answer: TypeAlias = dict[str, Any]
PAGE = 100  # rows of a page, unless the viewer chose another number
MOST = 500  # rows of a page
MAX_MESSAGE = 4000  # characters
OWN_CODES = ("invalid_argument", "invalid_id", "values_hidden")  # of errors that quote only what the viewer sent
MAX_DETAILS = 50  # values that an error is about
KEY_BYTES = 8192  # at most, of what was asked
LIVE_KEPT = 8.0  # seconds: a little more than from one look to the next
FAILED: Answer = {"error": {"code": "failed", "message": "the console failed; its log says why"}}
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Console:
    """What handlers share."""

    hub: Hub
    options: ConsoleOptions
    version: str
    states: StateCache = field(default_factory=StateCache)
    kept: Kept = field(default_factory=Kept)

    async def client(self) -> RebaserClient:
        """Return the client. Raises `NotConnectedError` without a connection."""
        return await self.hub.client()


@dataclass(frozen=True, slots=True)
class Given:
    """The parameters of a request: those in its path, and those behind it."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> ChangeSetKey:
        """The change set that the path names. Raises `UnprocessableError` for an invalid name."""
        return ChangeSetKey.of(self.path["workspace"], self.path["changeSet"])

    def text(self, name: str, default: str = "", most: int = 200) -> str:
        """Return a text of at most `most` characters."""
        found = self.query.get(name, default)
        if len(found) > most:
            raise invalid(f"{name} may have at most {most} characters")
        return found

    def number(self, name: str, default: int, *, least: int = 0, most: int = 10**15) -> int:
        found = self.query.get(name, "")
        if not found:
            return default
        if not found.isascii() or not found.isdecimal() or len(found) > 16 or not least <= int(found) <= most:
            raise invalid(f"{name} has to be a number from {least:,} to {most:,}")
        return int(found)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of `choices`, by default the first one."""
        found = self.query.get(name, "") or choices[0]
        if found not in choices:
            raise invalid(f"{name} has to be one of {', '.join(choices)}")
        return found

    def flag(self, name: str) -> bool:
        return self.choice(name, ("no", "yes")) == "yes"

    def page(self) -> tuple[int, int]:
        """Return the offset of a page, and its number of rows."""
        return self.number("offset", 0, most=10**9), self.number("limit", PAGE, least=1, most=MOST)


Read: TypeAlias = Callable[[Console, Given], Awaitable[Answer]]
Act: TypeAlias = Callable[[Console, Given, Mapping[str, Any]], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that can be read at `path`, which may have places such as `{workspace}`.

    If it is `live`, the live stream sends it again whenever it changes. `read` gets only the parameters named in
    `query`, because its answers are kept: other parameters would fill the memory with equal ones.
    """

    path: str
    read: Read
    live: bool = False
    query: tuple[str, ...] = ()  # of a live resource

    def match(self, path: str) -> dict[str, str] | None:
        """Return the parameters in `path`; None if it is another path."""
        return match(self.path, path)

    async def body(self, console: Console, given: Given) -> bytes:
        """Return the JSON of what is read. If it is live, all who look at the same share one answer for each look."""

        async def read() -> bytes:
            return dumps(JSON, await self.read(console, given))

        if not self.live:
            return await read()
        given = Given(given.path, {name: text for name, text in given.query.items() if name in self.query})
        asked = frozenset(given.path.items()), frozenset(given.query.items())
        key = ("body", self.path, *asked, console.hub.version)
        return await console.kept.get(key, read, lambda body: len(body) + KEY_BYTES, seconds=LIVE_KEPT)


@dataclass(frozen=True, slots=True)
class Document:
    """A file to download: its name, its media type, and its content in parts."""

    name: str
    media_type: str
    parts: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Download:
    """A file that can be downloaded at `path`."""

    path: str
    read: Callable[[Console, Given], Awaitable[Document]]


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a POST to `path` does. `act` also gets the body of the request, a JSON object.

    The log event of the action has the fields `logged` of the body.
    """

    path: str
    act: Act
    logged: tuple[str, ...] = ("author",)


def match(template: str, path: str) -> dict[str, str] | None:
    """Return the parts of `path` at the places of `template`; None if it does not match."""
    expected, parts = template.split("/"), path.split("/")
    if len(expected) != len(parts):
        return None
    found: dict[str, str] = {}
    for part, given in zip(expected, parts, strict=True):
        place = _PLACE.fullmatch(part)
        if place is not None and given:
            found[place[1]] = given
        elif part != given:
            return None
    return found


def error_answer(error: RebaserError) -> tuple[int, Answer]:
    """Return the status and the body of the answer to a request that failed."""
    code, status = error.code, 500
    if isinstance(error, (RequestRejected, NewErrors, UnresolvedConflicts)):
        status = 409
    elif isinstance(error, NotAllowed):
        status = 403
    elif isinstance(error, UnprocessableError):
        status = 404 if code.startswith("no_such") else 400
    elif isinstance(error, TransientError):
        status = 503
    safe = isinstance(error, NotConnectedError) or status in (403, 404) or code in OWN_CODES
    message = error.message if safe else told(error.message)
    found: Answer = {"code": code, "message": cut(message, MAX_MESSAGE), "details": _details(error)}
    if isinstance(error, NoSuchValueError):
        found["position"] = error.position
    return status, {"error": found}


def _details(error: RebaserError) -> list[Answer]:
    """Return the values that an error is about, each with what is wrong."""
    found: list[tuple[str, str]] = []
    if isinstance(error, NewErrors):
        found = [(id_, f"{fault.code}: {fault.message}") for id_, fault in error.errors.items()]
    elif isinstance(error, RequestConflicts):
        found = [(conflict.id, conflict.message) for conflict in error.conflicts]
    return [{"id": id_, "message": cut(told(message))} for id_, message in found[:MAX_DETAILS]]


class NoSuchValueError(UnprocessableError):
    """There is no such value, as of a position in the log. A page needs the position to know when to ask again, and to
    define the value only if nobody else has defined it since."""

    default_code = "no_such_value"

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def invalid(message: str) -> UnprocessableError:
    """Return the error for a bad parameter."""
    return UnprocessableError(message, code="invalid_argument")
