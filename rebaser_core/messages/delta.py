"""Defines the wire format of deltas, which are either inline in a commit or in a blob.

Invariant: the delta of a `dvu` commit contains only computed values, and the delta of any other commit only updates.
Any other delta is refused.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

from rebaser_core import thresholds
from rebaser_core.commit import Computed, Delta, Kind
from rebaser_core.encoding.payload import (
    CBOR,
    LIST,
    MAP,
    dumps,
    head,
    malformed,
    read_head,
    read_item,
    read_items,
    write_items,
)
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.limits import COMMIT_LIMITS, DEFAULT_LIMITS, Limits
from rebaser_core.updates import Update, any_match, check_id, of_id, parse_update, parse_updates
from rebaser_core.values import Fault, check_json

T = TypeVar("T")

_ITEMS = (tuple, list)  # the types of all deltas except `ComputedTable`
_SLICE_BYTES = 64 * 1024  # the approximate number of bytes that are decoded in one call
_SINGULAR = {"updates": "update", "computed": "computed value"}


def write_computed(item: Computed) -> dict[str, Any]:
    if item.fault is None:
        return {"id": item.id, "value": item.value}
    return {
        "id": item.id,
        "error": {"code": item.fault.code, "message": item.fault.message, "origin": item.fault.origin},
    }


def read_computed_list(raw: object, limits: Limits) -> tuple[Computed, ...]:
    if type(raw) is not list:
        raise malformed(f"the field 'computed' must be a list, not {type(raw).__name__}")
    return tuple([read_computed(item, limits) for item in raw])


def read_computed(raw: object, limits: Limits) -> Computed:
    if type(raw) is not dict or len(raw) != 2:
        raise malformed(
            "a computed value must be a map with the key 'id' and either the key 'value' or the key 'error'"
        )
    id_ = check_id(raw.get("id"), limits)
    if "value" in raw:
        return Computed(id_, check_json(raw["value"], limits))
    return Computed(id_, None, read_fault(raw.get("error")))


def read_fault(raw: object) -> Fault:
    if type(raw) is dict and len(raw) == 3:
        code, message, origin = raw.get("code"), raw.get("message"), raw.get("origin")
        if type(code) is str and type(message) is str and type(origin) is str:
            return Fault(code, message, origin)
    raise malformed("the error of a computed value must be a map of code, message and origin, all of which are text")


def write_delta(delta: Delta) -> dict[str, Any]:
    """Return the wire map of `delta`."""
    field, write = _writer(delta)
    return {field: [write(item) for item in delta]}


def _writer(delta: Delta) -> tuple[str, Callable[[Any], dict[str, Any]]]:
    if delta and type(delta[0]) is Computed:
        return "computed", write_computed
    return "updates", operator.methodcaller("to_wire")


def read_delta(kind: Kind, raw: dict[str, Any], limits: Limits) -> Delta:
    """Return the delta with the wire map `raw`, for a commit of `kind`. Raise `UnprocessableError` if `raw` is
    invalid."""
    field = "computed" if kind is Kind.DVU else "updates"
    if len(raw) != 1 or field not in raw:
        raise malformed(f"the delta of a {kind} commit must be a map with the single key {field!r}")
    return read_computed_list(raw[field], limits) if kind is Kind.DVU else parse_updates(raw[field], limits)


# -- blobs -------------------------------------------------------------------------------------------------------------
# A blob contains `{"v1": {"updates": […]}}` or `{"v1": {"computed": […]}}` in CBOR. Each call of cbor2 encodes or
# decodes only a few hundred items, because a call for a million items would block the event loop for a second. A blob
# of updates that contain a match has the key `v2`, so that programs of the previous release refuse it as too new. The
# results of a large update are written in columns (`rebaser_core.messages.computed_blob`), also under the key `v2`.
# Clients rarely read such results, so the module for columns, which needs NumPy, is imported only when it is needed.

_V2 = dumps(CBOR, {"v2": 0})[:4]


def encode_updates_blob(updates: Sequence[Update]) -> bytes:
    """Encode `updates` as a blob, because they are too large for their request."""
    return encode_delta(tuple(updates))


def decode_updates_blob(data: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[Update, ...]:
    """Decode updates that `encode_updates_blob` has encoded as `data`.

    The updates are validated by the same rules as updates in a message. Raise `UnprocessableError` if they are invalid,
    and `UnsupportedVersion` if the version of the blob is unknown.
    """
    return _decode("updates", data, limits, parse_update)


@dataclass(frozen=True, slots=True)
class EncodedUpdates:
    """Updates that have been checked and encoded as a `blob`. Iterating over this object decodes them."""

    blob: bytes
    count: int

    @classmethod
    def of(cls, updates: Sequence[Update]) -> "EncodedUpdates":
        """Encode `updates`. The caller must have checked them with `check_updates` and `check_definitions`."""
        return cls(encode_updates_blob(updates), len(updates))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Update]:
        return iter(decode_updates_blob(self.blob, COMMIT_LIMITS))


def encode_delta(delta: Delta, max_bytes: int = COMMIT_LIMITS.max_request_bytes) -> bytes:
    """Encode `delta` as a blob, because it is too large for its commit.

    Raise `UnprocessableError` with code `too_large` if the blob would have more than about `max_bytes`.
    """
    if not isinstance(delta, _ITEMS):
        from rebaser_core.messages.computed_blob import encode_table  # noqa: PLC0415 - needs NumPy
        from rebaser_core.state.computed_table import ComputedTable  # noqa: PLC0415 - needs NumPy

        if isinstance(delta, ComputedTable):
            return encode_table(delta)
    field, write = _writer(delta)
    tag = "v2" if field == "updates" and any_match(delta) else "v1"
    frame = dumps(CBOR, {tag: {field: []}})[:-1]
    some = thresholds.now.blob_slice_max_items
    slices = [frame, head(LIST, len(delta))]
    room = max_bytes
    for start in range(0, len(delta), some):
        slices.append(write_items(list(map(write, delta[start : start + some]))))
        room -= len(slices[-1])
        if room < 0:
            raise UnprocessableError(f"the blob would have more than {max_bytes} bytes", code="too_large")
    return b"".join(slices)


def decode_delta(kind: Kind, data: bytes, limits: Limits = COMMIT_LIMITS) -> Delta:
    """Return the delta in the blob `data`, which belongs to a commit of `kind`.

    Raise `UnprocessableError` if the blob is invalid, and `UnsupportedVersion` if its version is unknown.
    """
    if kind is Kind.DVU:
        if data[:4] == _V2:
            if len(data) > limits.max_request_bytes:
                raise UnprocessableError(
                    f"the blob has {len(data)} bytes; at most {limits.max_request_bytes} are allowed", code="too_large"
                )
            from rebaser_core.messages.computed_blob import decode_table  # noqa: PLC0415 - needs NumPy

            return decode_table(data, limits)
        return _decode("computed", data, limits, read_computed)
    return _decode("updates", data, limits, parse_update)


def check_delta(kind: Kind, data: bytes, delta: Delta) -> None:
    """Raise `UnprocessableError` if the blob `data`, which belongs to a commit of `kind`, does not decode to
    `delta`."""
    if not isinstance(delta, _ITEMS):
        from rebaser_core.messages.computed_blob import check_table  # noqa: PLC0415 - needs NumPy
        from rebaser_core.state.computed_table import ComputedTable  # noqa: PLC0415 - needs NumPy

        if isinstance(delta, ComputedTable):
            check_table(data, delta, COMMIT_LIMITS)
            return
    if decode_delta(kind, data) != tuple(delta):
        raise malformed("the blob does not decode to the delta that was encoded")


def _decode(field: str, data: bytes, limits: Limits, read: Callable[[object, Limits], T]) -> tuple[T, ...]:
    if len(data) > limits.max_request_bytes:
        raise UnprocessableError(
            f"the blob has {len(data)} bytes; at most {limits.max_request_bytes} are allowed", code="too_large"
        )
    source = BytesIO(data)
    newest = 2 if field == "updates" else 1
    tag = _open_map(source, lambda tag: check_version(tag, newest))
    if tag == "v1":
        limits = limits.without_matches
    _open_map(source, lambda key: _check_field(key, field))
    count = read_head(source, LIST)
    if count > limits.max_updates:
        raise UnprocessableError(
            f"the blob has {count} {_SINGULAR[field]}s; at most {limits.max_updates} are allowed", code="too_large"
        )
    items: list[T] = []
    some = max(1, min(thresholds.now.blob_slice_max_items, _SLICE_BYTES * count // len(data)))
    for first in range(0, count, some):
        start, size = source.tell(), min(some, count - first)
        try:
            slice_ = [read(raw, limits) for raw in read_items(source, size, limits)]
        except UnprocessableError:
            source.seek(start)
            slice_ = [_read_one(source, field, position, limits, read) for position in range(first, first + size)]
        items += slice_
    if source.tell() != len(data):
        raise malformed(f"{len(data) - source.tell()} unexpected bytes follow the {_SINGULAR[field]}s in the blob")
    return tuple(items)


def _read_one(source: BytesIO, field: str, position: int, limits: Limits, read: Callable[[object, Limits], T]) -> T:
    """Read and return the item at `position` of the list. If the item is invalid, raise an error whose message contains
    the position and the id."""
    raw: object = None
    try:
        raw = read_item(source, limits)
        return read(raw, limits)
    except UnprocessableError as error:
        what = f"{_SINGULAR[field]} {position}{of_id(raw, error.message)}"
        raise UnprocessableError(what, code=error.code) from None


def check_version(tag: object, newest: int) -> None:
    """Check that `tag`, the key of a blob, is a version from `v1` to `v<newest>`.

    Raise `UnsupportedVersion` if the version is newer, and `UnprocessableError` if `tag` is not a version.
    """
    if type(tag) is str and _VERSION_TAG.fullmatch(tag):
        if int(tag[1:]) <= newest:
            return
        raise UnsupportedVersion(
            f"the blob has version {tag}, but this release reads versions up to v{newest}: use a newer release"
        )
    raise malformed('the blob must be a map with its version as the only key, as in {"v1": {…}}')


_VERSION_TAG = re.compile(r"v[1-9][0-9]{0,8}")


def _check_field(key: object, field: str) -> None:
    if key != field:
        raise malformed(f"the blob must have the field {field!r}, but it has the field {str(key)[:40]!r}")


def _open_map(source: BytesIO, check_key: Callable[[object], None]) -> object:
    """Read the head and the only key of a map, check the key with `check_key`, and return the key."""
    if read_head(source, MAP) != 1:
        raise malformed("each of the two outer maps of a blob must have exactly one key")
    key = read_item(source, DEFAULT_LIMITS)
    check_key(key)
    return key
