"""The envelope of every message: headers that name its content type, type and version, and a payload.

Invariant: only the headers decide whether the payload is decoded: first the content type, then the type, then the
version. A message of an older version is upgraded step by step to the current one before other code sees it. For any
bytes and headers, decoding returns a message or raises a `RebaserError`.
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
    "BLOBS",
    "BRANCH",
    "CBOR",
    "CONTENT_TYPE",
    "COVERS",
    "DEBT",
    "DIGESTS",
    "EDITED",
    "FROM",
    "JSON",
    "MESSAGE_ID",
    "MESSAGE_TYPE",
    "MESSAGE_VERSION",
    "PROTECTED",
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
COVERS: Final = "X-Covers"
UNKNOWN: Final = "X-Unknown-Functions"
DIGESTS: Final = "X-Digests"
EDITED: Final = "X-Edited"
BRANCH: Final = "X-Branch"
BLOBS: Final = "X-Blobs"
FROM: Final = "X-From"
PROTECTED: Final = "X-Protected"
REDRIVE: Final = "X-Redrive"  # how often a request was redriven from the dead letters

M = TypeVar("M")
Headers = Mapping[str, str]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """Base of the wire models, one for each version of each message: camelCase names, exact types, no unknown
    fields.

    They are built on first use or by `MessageRegistry.build`, because programs that only read values need none of
    them.
    """

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many(cls, raw: object) -> object:
        # Otherwise pydantic would make an error object for each unknown field.
        if type(raw) is dict and len(raw) > len(cls.model_fields):
            raise malformed(f"a map has {len(raw)} fields; at most {len(cls.model_fields)} are known")
        return raw


@dataclass(frozen=True, slots=True)
class MessageType(Generic[M]):
    """A message type. The current version is the last of `bodies`; `upgrades[0]` turns a v1 body into a v2 body.

    `read` turns a body of the current version into the message; it also gets the version in which the message arrived.
    `write` returns the wire map of a message in a given version. Both may raise `UnprocessableError`. `lowest` returns
    the first version that can express a message. Messages are written in that version, so that programs of the previous
    release can read every message that they could have written themselves. Without `lowest`, messages are written in
    the current version.
    """

    name: str
    message: type[M]
    bodies: tuple[type[Body], ...]
    upgrades: tuple[Callable[[Any], Body], ...]
    read: Callable[[Any, Limits, int], M]
    write: Callable[[M, int], dict[str, Any]]
    lowest: Callable[[M], int] | None = None
    # Reads a body of a given version without the pydantic model, which costs as much as all other steps together.
    # Returns None if the body does not have the usual shape.
    quick: Callable[[dict[str, Any], Limits, int], M | None] | None = None

    @property
    def current(self) -> int:
        return len(self.bodies)

    def decode_body(self, content: dict[str, Any], version: int, limits: Limits) -> M:
        """Decode the wire map of a message in `version`, and upgrade it to the current version."""
        if self.quick is not None:
            message = self.quick(content, limits, version)
            if message is not None:
                return message
        body = validate(self.bodies[version - 1], content)
        for upgrade in self.upgrades[version - 1 :]:
            body = upgrade(body)
        return self.read(body, limits, version)


@dataclass(frozen=True, slots=True)
class Peeked:
    """Content type, type and version, from the headers of a message that this program can read."""

    content_type: ContentType
    type: str
    version: int


def content_type_of(headers: Headers | None) -> ContentType:
    """Return the content type for the reply to a message: the content type of the message, or CBOR if the message has
    none or an unknown one."""
    try:
        return ContentType.of((headers or {}).get(CONTENT_TYPE, CBOR))
    except UnprocessableError:
        return CBOR


_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class MessageRegistry:
    """The message types that a program knows; decodes and encodes their messages."""

    def __init__(self, types: Iterable[MessageType[Any]]) -> None:
        self.types: dict[str, MessageType[Any]] = {}
        self.is_built = False
        self._by_class: dict[type, MessageType[Any]] = {}
        # `peek` runs for every message, so known headers are looked up in one step.
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

    def build(self) -> None:
        """Build the pydantic models of all bodies, which takes tens of milliseconds and reads files.

        Otherwise the first message that needs a model builds it, on the event loop.
        """
        for kind in self.types.values():
            for body in kind.bodies:
                body.model_rebuild()
        self.is_built = True

    def peek(self, headers: Headers | None) -> Peeked:
        """Read the headers of a message.

        Raises `UnprocessableError` with code `malformed` (a header is missing, or the version is not a positive
        number), `unsupported_content_type` or `unknown_message_type`; `UnsupportedVersion` for a version newer than
        this program reads.
        """
        headers = headers or {}
        content_type, name, version = (
            headers.get(CONTENT_TYPE),
            headers.get(MESSAGE_TYPE),
            headers.get(MESSAGE_VERSION),
        )
        peeked = self._peeked.get((content_type, name, version))
        if peeked is not None:
            return peeked
        if content_type is None:
            raise malformed(f"the message has no header {CONTENT_TYPE}")
        plain = ContentType.of(content_type)
        peeked = self._peeked.get((plain.value, name, version))
        if peeked is not None:
            return peeked
        if name is None:
            raise malformed(f"the message has no header {MESSAGE_TYPE}")
        kind = self.types.get(name)
        if kind is None:
            raise UnprocessableError(f"unknown message type {name[:80]!r}", code="unknown_message_type")
        if version is None:
            raise malformed(f"the message has no header {MESSAGE_VERSION}")
        if _VERSION.fullmatch(version) is None:
            raise malformed(f"the header {MESSAGE_VERSION} has {version[:80]!r}, not a number from 1 to 999999999")
        raise UnsupportedVersion(
            f"the message is a {name} of version {version}; this program reads up to version {kind.current}"
        )

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits = ..., expect: None = None) -> object: ...

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits = ..., *, expect: type[M]) -> M: ...

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits, expect: type[M]) -> M: ...

    def decode(
        self, headers: Headers | None, payload: bytes, limits: Limits = DEFAULT_LIMITS, expect: type | None = None
    ) -> object:
        """Decode a message and upgrade it to its current version.

        Raises the errors of `peek` and `loads`, and `UnprocessableError` with code `unexpected_message_type` (the type
        is known, but not `expect`), `malformed` (the payload does not fit its version) or a code that its content
        determines, such as `invalid_update` and `invalid_id`.
        """
        peeked = self.peek(headers)
        kind = self.types[peeked.type]
        if expect is not None and kind.message is not expect:
            wanted = self._by_class[expect].name
            raise UnprocessableError(
                f"unexpected message type {kind.name} in place of {wanted}", code="unexpected_message_type"
            )
        raw = loads(peeked.content_type, payload, limits)
        return kind.decode_body(unwrap(raw, peeked.version), peeked.version, limits)

    def lowest(self, message: object) -> int:
        """Return the version in which a message is written: the lowest that can express it."""
        kind = self._by_class[type(message)]
        return kind.current if kind.lowest is None else kind.lowest(message)

    def encode(
        self, message: object, content_type: ContentType = CBOR, version: int | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Encode a message as `(headers, payload)`, in `version` or in the lowest version that can express it.

        The caller may add headers. Raises `UnprocessableError` for a message that `version` cannot express.
        """
        kind = self._by_class[type(message)]
        version = version or self.lowest(message)
        headers = self._headers[kind.name, version, content_type].copy()
        return headers, dumps(content_type, {f"v{version}": kind.write(message, version)})


def unwrap(raw: object, version: int) -> dict[str, Any]:
    """Return the map inside the tagged union `{"v1": {…}}`; the tag must be that of `version`."""
    if type(raw) is not dict or len(raw) != 1:
        raise malformed('a payload must be a map with its version as the only key, as in {"v1": {…}}')
    tag, body = next(iter(raw.items()))
    if tag != f"v{version}":
        raise malformed(f"the payload has the version {tag[:40]!r}, but the header {MESSAGE_VERSION} says {version}")
    if type(body) is not dict:
        raise malformed(f"the content of {tag} is not a map")
    return body


def validate(model: type[Body], raw: dict[str, Any]) -> Body:
    """Validate `raw` as a body; raises `UnprocessableError` (`malformed`) that names the first invalid field."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise malformed(f"{where}: {first['msg']}") from None
