"""Defines the wire format of a reference to a checkpoint, which is a field of a commit."""

from typing import Any

from rebaser_core.blobs.address import check_address
from rebaser_core.commit import CheckpointRef
from rebaser_core.encoding.envelope import Body, Count
from rebaser_core.messages.commit_fields.origin import read_blob
from rebaser_core.values import INT64_MAX


class CheckpointV1(Body):
    address: str
    sequence: Count
    size: Count


class CheckpointV3(CheckpointV1):
    """The wire model of a reference to a checkpoint. For a branch, `changes` is the address and the size of the blob
    that contains the branch's changes at the checkpoint."""

    changes: dict[str, Any] | None = None


def read_checkpoint(body: CheckpointV3) -> CheckpointRef:
    """Return the reference in `body`. Raise `UnprocessableError` if an address is invalid."""
    changes = None if body.changes is None else read_blob(body.changes)
    return CheckpointRef(check_address(body.address), body.sequence, body.size, changes)


def quick_checkpoint(raw: object) -> CheckpointRef | None:
    """Return the reference to a checkpoint if `raw` has only the fields that it has for a change set that is not a
    branch; otherwise return None."""
    if type(raw) is not dict or len(raw) != 3:
        return None
    address, sequence, size = raw.get("address"), raw.get("sequence"), raw.get("size")
    if not (type(sequence) is type(size) is int and 0 <= sequence <= INT64_MAX and 0 <= size <= INT64_MAX):
        return None
    return CheckpointRef(check_address(address), sequence, size)
