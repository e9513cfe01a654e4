"""Encodes and decodes the envelope of messages: a payload, and headers that specify its content type, type and version.

Invariant: whether the payload is decoded depends only on the headers, which are checked in this order: content type,
type, version. A message of an older version is upgraded step by step to the current version before other code sees it.
For any bytes and headers, decoding returns a message or raises a `RebaserError`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from rebaser_core.encoding.payload import CBOR, JSON, ContentType, check_tree, dumps, loads, malformed
from rebaser_core.errors import RebaserError, UnprocessableError, UnsupportedVersion
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
    "SUMMARY",
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
SUMMARY: Final = "X-Summary"
REDRIVE: Final = "X-Redrive"  # how often a request was sent again from the dead letters

M = TypeVar("M")
Headers = Mapping[str, str]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """The base class of the pydantic models that describe the bodies of messages, in each of their versions.

    Field names are in camelCase on the wire. Types are not converted, and unknown fields are refused. Programs that
    only read values need no model, so pydantic builds a model only when it is first used or when
    `MessageRegistry.build` is called.
    """

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many(cls, raw: object) -> object:
        # Without this check, pydantic would create an error object for each unknown field.
        if type(raw) is dict and len(raw) > len(cls.model_fields):
            raise malformed(f"a map has {len(raw)} fields, but its type has at most {len(cls.model_fields)}")
        return raw


@dataclass(frozen=True, slots=True)
class MessageType(Generic[M]):
    """A type of message, with the functions that read and write it.

    `bodies` are the wire models of its versions, from version 1 to the current version. `upgrades[0]` converts a body
    of version 1 to version 2, and so on. `read` converts a body of the current version to the message; its last
    argument is the version in which the message arrived. `write` returns the wire map of a message in a given version.
    Both may raise `UnprocessableError`.

    `lowest` returns the first version that can express a message. Messages are written in that version, so that
    programs of the previous release can read every message that they could have written themselves. If `lowest` is
    None, messages are written in the current version.
    """

    name: str
    message: type[M]
    bodies: tuple[type[Body], ...]
    upgrades: tuple[Callable[[Any], Body], ...]
    read: Callable[[Any, Limits, int], M]
    write: Callable[[M, int], dict[str, Any]]
    lowest: Callable[[M], int] | None = None
    # Reads a body of a given version without its pydantic model, because the model takes as long as all other steps
    # together. Returns None for a body that has unusual fields; the model then reads it. The body may be unchecked (see
    # `read_unchecked`), because checking it first would take a tenth of the decoding time. This function must therefore
    # not accept any type or number that `check_tree` refuses.
    quick: Callable[[dict[str, Any], Limits, int], M | None] | None = None
    # Returns the lowest version that can express a message, and the payload in CBOR. Returns None for a message that is
    # not plain (see `rebaser_core.messages.plain`); it is then written with `write`.
    write_plain: Callable[[M], tuple[int, bytes] | None] | None = None

    @property
    def current(self) -> int:
        return len(self.bodies)

    def decode_body(self, content: dict[str, Any], version: int, limits: Limits) -> M:
        """Return the message with the wire map `content` in `version`, upgraded to the current version. `content` may
        be unchecked (see `read_unchecked`)."""
        if self.quick is not None:
            try:
                message = self.quick(content, limits, version)
            except RebaserError:
                check_tree(content)  # raises a more precise error
                raise
            if message is not None:
                return message
        check_tree(content)
        body = validate(self.bodies[version - 1], content)
        for upgrade in self.upgrades[version - 1 :]:
            body = upgrade(body)
        return self.read(body, limits, version)


@dataclass(frozen=True, slots=True)
class Peeked:
    """The content type, type and version of a message that this program can read, according to its headers."""

    content_type: ContentType
    type: str
    version: int


def content_type_of(headers: Headers | None) -> ContentType:
    """Return the content type in which to reply to a message with `headers`.

    This is the message's own content type, or CBOR if the message specifies no content type or an unknown one.
    """
    try:
        return ContentType.of((headers or {}).get(CONTENT_TYPE, CBOR))
    except UnprocessableError:
        return CBOR


_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class MessageRegistry:
    """Encodes and decodes messages of the types that a program knows."""

    def __init__(self, types: Iterable[MessageType[Any]]) -> None:
        self.types: dict[str, MessageType[Any]] = {}
        self.is_built = False
        self._by_class: dict[type, MessageType[Any]] = {}
        # `peek` runs for every message. To make it fast, this map contains all combinations of headers that it accepts.
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

        Without this call, each model is built when the first message needs it, which blocks the event loop.
        """
        for kind in self.types.values():
            for body in kind.bodies:
                body.model_rebuild()
        self.is_built = True

    def peek(self, headers: Headers | None) -> Peeked:
        """Return the content type, type and version that the headers of a message specify.

        Raise `UnprocessableError` with code `malformed` (a header is missing, or the version is not a positive number),
        `unsupported_content_type` or `unknown_message_type`. Raise `UnsupportedVersion` if this program cannot read the
        version because it is too new.
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
            raise malformed(f"the message has no header {CONTENT_TYPE}, which every message needs")
        plain = ContentType.of(content_type)
        peeked = self._peeked.get((plain.value, name, version))
        if peeked is not None:
            return peeked
        if name is None:
            raise malformed(f"the message has no header {MESSAGE_TYPE}, which every message needs")
        kind = self.types.get(name)
        if kind is None:
            raise UnprocessableError(
                f"the message type {name[:80]!r} is unknown; the known types are {', '.join(self.types)}",
                code="unknown_message_type",
            )
        if version is None:
            raise malformed(f"the message has no header {MESSAGE_VERSION}, which every message needs")
        if _VERSION.fullmatch(version) is None:
            raise malformed(f"the header {MESSAGE_VERSION} must be a number from 1 to 999999999, not {version[:80]!r}")
        raise UnsupportedVersion(
            f"the message is a {name} of version {version}, but this release reads versions up to {kind.current}: "
            "use a newer release"
        )

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits = ..., expect: None = None) -> object: ...

    @overload
    def decode(self, headers: Headers | None, payload: bytes, limits: Limits = ..., *, expect: type[M]) -> M: ...

    @overload
    def decode(
        self, headers: Headers | None, payload: bytes, limits: Limits, expect: type[M], skip: str | None = ...
    ) -> M: ...

    def decode(
        self,
        headers: Headers | None,
        payload: bytes,
        limits: Limits = DEFAULT_LIMITS,
        expect: type | None = None,
        skip: str | None = None,
    ) -> object:
        """Decode a message, and upgrade it to the current version of its type. If the message has the field `skip`, its
        content is replaced with null before it is checked.

        Raise the same errors as `peek` and `loads`. Also raise `UnprocessableError` with code `unexpected_message_type`
        if the message is not of the type `expect`, with code `malformed` if the payload is not valid for its version,
        or with a code that depends on the invalid content, such as `invalid_update` or `invalid_id`.
        """
        peeked = self.peek(headers)
        kind = self.types[peeked.type]
        if expect is not None and kind.message is not expect:
            wanted = self._by_class[expect].name
            raise UnprocessableError(
                f"the message has the type {kind.name}, but only a message of the type {wanted} is accepted here",
                code="unexpected_message_type",
            )
        content = unwrap(loads(peeked.content_type, payload, limits, checked=False), peeked.version)
        if skip is not None and skip in content:
            content[skip] = None
        return kind.decode_body(content, peeked.version, limits)

    def lowest(self, message: object) -> int:
        """Return the version in which `message` is written, which is the lowest version that can express it."""
        kind = self._by_class[type(message)]
        return kind.current if kind.lowest is None else kind.lowest(message)

    def headers(self, name: str, version: int, content_type: ContentType = CBOR) -> dict[str, str]:
        """Return the headers of a message of the type `name`. The caller may change them."""
        return self._headers[name, version, content_type].copy()

    def encode(
        self, message: object, content_type: ContentType = CBOR, version: int | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Return the headers and the payload of `message`, encoded in `version` of its type.

        If `version` is None, the lowest version that can express the message is used. The caller may add headers to the
        result. Raise `UnprocessableError` if `version` cannot express the message.
        """
        kind = self._by_class[type(message)]
        if kind.write_plain is not None and version is None and content_type is CBOR:
            written = kind.write_plain(message)
            if written is not None:
                return self.headers(kind.name, written[0]), written[1]
        version = version or self.lowest(message)
        return self.headers(kind.name, version, content_type), dumps(
            content_type, {f"v{version}": kind.write(message, version)}
        )


def unwrap(raw: object, version: int) -> dict[str, Any]:
    """Return the inner map of a payload such as `{"v1": {…}}`. Raise `UnprocessableError` if the payload does not have
    this form, or if its key is not that of `version`."""
    if type(raw) is not dict or len(raw) != 1:
        raise malformed('a payload must be a map with its version as the only key, as in {"v1": {…}}')
    tag = f"v{version}"
    if tag not in raw:
        found = str(next(iter(raw)))
        raise malformed(f"the key of the payload is {found[:40]!r}; for version {version}, it must be {tag!r}")
    body = raw[tag]
    if type(body) is not dict:
        raise malformed(f"the payload must have a map under its key {tag!r}")
    return body


def validate(model: type[Body], raw: dict[str, Any]) -> Body:
    """Return `raw` as a body of the type `model`.

    If `raw` is invalid, raise `UnprocessableError` (code `malformed`) with a message that contains the path of the
    first invalid field.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise malformed(f"{where}: {first['msg']}") from None
