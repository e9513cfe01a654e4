"""Defines the wire format in which a `gc` commit records the plan of a garbage collection."""

from rebaser_core.blobs.address import check_address
from rebaser_core.commit import BlobRef, Collection, Kind
from rebaser_core.encoding.envelope import Body, Count
from rebaser_core.encoding.payload import malformed


class ListedV3(Body):
    address: str
    size: Count


class CollectionV3(Body):
    """The wire model of the plan of a garbage collection.

    `began_ms` is a Unix time, and `grace_ms` a duration in milliseconds. `trash_bytes` and `erase_bytes` are sizes; the
    other numbers count blobs. `listed` is the address and the size of the blob that lists all candidates.
    """

    began_ms: Count
    grace_ms: Count
    candidates: Count
    trash: Count = 0
    trash_bytes: Count = 0
    erase: Count = 0
    erase_bytes: Count = 0
    restore: Count = 0
    listed: ListedV3


_NUMBERS = ("trash", "trash_bytes", "erase", "erase_bytes", "restore")


def read_collection(kind: Kind, body: CollectionV3 | None, *, changed: bool) -> Collection | None:
    """Return the plan that a commit of `kind` records, or None if `body` is None.

    `changed` says whether the commit has a delta. Raise `UnprocessableError` if `body` is not valid for such a commit.
    """
    if (kind is Kind.GC) != (body is not None):
        raise malformed("a gc commit must have the field 'gc', and no other commit may have it")
    if body is None:
        return None
    if changed:
        raise malformed("a gc commit must not have a delta")
    return Collection(
        began_ms=body.began_ms,
        grace_ms=body.grace_ms,
        candidates=body.candidates,
        listed=BlobRef(check_address(body.listed.address), body.listed.size),
        **{name: getattr(body, name) for name in _NUMBERS},
    )


def write_collection(collection: Collection | None) -> dict[str, object]:
    if collection is None:
        return {}
    names = CollectionV3.model_fields
    numbers = {str(names[name].alias or name): value for name in _NUMBERS if (value := getattr(collection, name))}
    return {
        "gc": {
            "beganMs": collection.began_ms,
            "graceMs": collection.grace_ms,
            "candidates": collection.candidates,
            **numbers,
            "listed": {"address": collection.listed.address, "size": collection.listed.size},
        }
    }
