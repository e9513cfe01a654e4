"""The frame around every message: headers that say what it is, and a payload that is read only after that.

Invariant: a message is judged by its headers alone (content type, then type, then version) before its payload is
touched; an older version is upgraded step by step to the current one before any other code sees it; and whatever bytes
and headers come in, a reader gets a message or a `RebaserError`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from rebaser_core.encoding.payload import CBOR, JSON, ContentType, dumps, loads, malformed
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "APPLIED",
    "CBOR",
    "CONTENT_TYPE",
    "DEBT",
    "DIGESTS",
    "JSON",
    "MESSAGE_ID",
    "MESSAGE_TYPE",
    "MESSAGE_VERSION",
    "REDRIVE",
    "REPLY_INBOX",
    "UNKNOWN",
    "Body",
    "ContentType",
    "Headers",
    "MessageRegistry",
    "MessageType",
    "Peeked",
    "dumps",
    "loads",
]  # fmt: skip

CONTENT_TYPE: Final = "X-CONTENT-TYPE"
MESSAGE_TYPE: Final = "X-MESSAGE-TYPE"
MESSAGE_VERSION: Final = "X-MESSAGE-VERSION"
MESSAGE_ID: Final = "Nats-Msg-Id"
REPLY_INBOX: Final = "X-Reply-Inbox"
APPLIED: Final = "X-Applied"
DEBT: Final = "X-Debt"
UNKNOWN: Final = "X-Unknown-Functions"
DIGESTS: Final = "X-Digests"
REDRIVE: Final = "X-Redrive"  # how often a request came back from the dead letters

M = TypeVar("M")
Headers = Mapping[str, str]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """Base of the wire models, one for each version of each message: camelCase names, exact types, no field unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many(cls, raw: object) -> object:
        if type(raw) is dict and len(raw) > len(cls.model_fields):  # else each unknown field costs an error object
            raise malformed(f"{len(raw)} fields; at most {len(cls.model_fields)}")
        return raw


@dataclass(frozen=True, slots=True)
class MessageType(Generic[M]):
    """A type of message. The current version is the last of `bodies`; `upgrades[0]` makes a v2 body of a v1 body.

    `read` turns a current body, and the version it came in, into the message; `write` gives the wire map of a version.
    Both may raise `UnprocessableError`. `lowest` is the first version that can say a message, and the one it is written
    in, so that programs of the last release read all that they could have written; without it, the current one.
    """

    name: str
    message: type[M]
    bodies: tuple[type[Body], ...]
    upgrades: tuple[Callable[[Any], Body], ...]
    read: Callable[[Any, Limits, int], M]
    write: Callable[[M, int], dict[str, Any]]
    lowest: Callable[[M], int] | None = None
    # Reads a body (of the version given) of the usual shape without the model, which costs as much as the rest; None:
    # not that shape.
    quick: Callable[[dict[str, Any], Limits, int], M | None] | None = None

    @property
    def current(self) -> int:
        return len(self.bodies)


@dataclass(frozen=True, slots=True)
class Peeked:
    """What the headers say a message is, and that this program can read it."""

    content_type: ContentType
    type: str
    version: int


def content_type_of(headers: Headers | None) -> ContentType:
    """In which content type to answer a message: its own, CBOR if it has none that we know."""
    try:
        return ContentType.of((headers or {}).get(CONTENT_TYPE, CBOR))
    except UnprocessableError:
        return CBOR


_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class MessageRegistry:
    """All message types a program knows; reads and writes their messages."""

    def __init__(self, types: Iterable[MessageType[Any]]) -> None:
        self.types: dict[str, MessageType[Any]] = {}
        self._by_class: dict[type, MessageType[Any]] = {}
        # What is known is looked up in one step: this runs for every message.
        self._peeked: dict[tuple[str | None, str | None, str | None], Peeked] = {}
        self._headers: dict[tuple[str, int, ContentType], dict[str, str]] = {}
        for kind in types:
            self.types[kind.name] = self._by_class[kind.message] = kind
            for version in range(1, kind.current + 1):
                for content_type in ContentType:
                    self._peeked[content_type.value, kind.name, str(version)] = Peeked(content_type, kind.name, version)
                    self._headers[kind.name, version, content_type] = {
                        CONTENT_TYPE: content_type.value,
                        MESSAGE_TYPE: kind.name,
                        MESSAGE_VERSION: str(version),
                    }

    def peek(self, headers: Headers | None) -> Peeked:
        """What a message is, from its headers alone.

        Raises `UnprocessableError` with code `malformed` (a header is missing, or the version is no positive number),
        `unsupported_content_type` or `unknown_message_type`, and `UnsupportedVersion` for a version newer than ours.
        """
        headers = headers or {}
        content_type, name, version = (
            headers.get(CONTENT_TYPE),
            headers.get(MESSAGE_TYPE),
            headers.get(MESSAGE_VERSION),
        )
        found = self._peeked.get((content_type, name, version))
        if found is not None:
            return found
        if content_type is None:
            raise malformed(f"no header {CONTENT_TYPE}")
        plain = ContentType.of(content_type)
        found = self._peeked.get((plain.value, name, version))
        if found is not None:
            return found
        if name is None:
            raise malformed(f"no header {MESSAGE_TYPE}")
        kind = self.types.get(name)
        if kind is None:
            raise UnprocessableError(f"message type {name[:80]!r}", code="unknown_message_type")
        if version is None:
            raise malformed(f"no header {MESSAGE_VERSION}")
        if _VERSION.fullmatch(version) is None:
            raise malformed(f"version {version[:80]!r} is not a positive number")
        raise UnsupportedVersion(f"{name} version {version}; this program reads up to {kind.current}")

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits = ..., expect: None = None) -> object: ...

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits = ..., *, expect: type[M]) -> M: ...

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits, expect: type[M]) -> M: ...

    def decode(
        self, headers: Headers | None, payload: bytes, limits: Limits = DEFAULT_LIMITS, expect: type | None = None
    ) -> object:
        """The message, upgraded to its current version.

        Raises what `peek` and `loads` raise, and `UnprocessableError` with code `unexpected_message_type` (of a known
        type, but not `expect`), `malformed` (the payload is not what its version says) or a code of its content, such
        as `invalid_update` and `invalid_id`.
        """
        peeked = self.peek(headers)
        kind = self.types[peeked.type]
        if expect is not None and kind.message is not expect:
            raise UnprocessableError(f"a message of type {kind.name}", code="unexpected_message_type")
        raw = loads(peeked.content_type, payload, limits)
        content = unwrap(raw, peeked.version)
        if kind.quick is not None:
            usual = kind.quick(content, limits, peeked.version)
            if usual is not None:
                return usual
        body = validate(kind.bodies[peeked.version - 1], content)
        for upgrade in kind.upgrades[peeked.version - 1 :]:
            body = upgrade(body)
        return kind.read(body, limits, peeked.version)

    def lowest(self, message: object) -> int:
        """The version that a message is written in: the lowest that can say it."""
        kind = self._by_class[type(message)]
        return kind.current if kind.lowest is None else kind.lowest(message)

    def encode(
        self, message: object, content_type: ContentType = CBOR, version: int | None = None
    ) -> tuple[dict[str, str], bytes]:
        """`(headers, payload)`, headers to be added to; in the lowest version that will do, or in `version`.

        Raises `UnprocessableError` for a message that an older `version` cannot express.
        """
        kind = self._by_class[type(message)]
        version = version or self.lowest(message)
        headers = self._headers[kind.name, version, content_type].copy()
        return headers, dumps(content_type, {f"v{version}": kind.write(message, version)})


def unwrap(raw: object, version: int) -> dict[str, Any]:
    """The map inside the tagged union `{"v1": {…}}`, whose tag must be that of `version`."""
    if type(raw) is not dict or len(raw) != 1:
        raise malformed("a payload is a map with one version in it")
    tag, body = next(iter(raw.items()))
    if tag != f"v{version}":
        raise malformed(f"the payload is {tag[:40]!r}, not v{version}")
    if type(body) is not dict:
        raise malformed(f"{tag} is not a map")
    return body


def validate(model: type[Body], raw: dict[str, Any]) -> Body:
    """`raw` as a body; raises `UnprocessableError` (`malformed`) naming the first field that is wrong."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise malformed(f"{where}: {first['msg']}") from None
