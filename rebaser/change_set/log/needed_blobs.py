"""Lists, in a header of each commit, the blobs that the log needs from that commit on.

Invariant: every blob that a stored message needs is listed in a header of that message, or of an older message that is
still in the log.
"""

from dataclasses import replace

from rebaser_client.blobs import BlobStore
from rebaser_core.commit import BlobRef, Commit
from rebaser_core.messages import encode_addresses
from rebaser_core.messages.headers.branches import LIST, MAX_ADDRESSES

ADDRESS_BYTES = 72  # bytes of one address in a header


def needs_blobs(commit: Commit) -> bool:
    """Return whether `commit` has parts in blobs, or lists blobs that the log needs from this commit on."""
    if commit.blobs:
        return True
    for decision in commit.requests:  # `any` takes longer
        if decision.result is not None:
            return True
    has_more = commit.delta_blob or commit.before_blob or commit.origin or commit.replay or commit.carried
    return bool(has_more and _parts(commit))


async def with_blobs_named(blobs: BlobStore, commit: Commit, max_bytes: int) -> Commit:
    """Return `commit` with the addresses of all blobs that it needs.

    If there are too many addresses for a header, or if they take more than `max_bytes` bytes, they are stored in one
    more blob, and the header lists only that blob. Raise `TransientError` if that blob cannot be stored.
    """
    addresses = dict.fromkeys([*commit.blobs, *(part.address for part in _parts(commit))])
    if len(addresses) > min(MAX_ADDRESSES, max_bytes // ADDRESS_BYTES):
        addresses = {LIST + await blobs.put(encode_addresses(addresses)): None}
    return replace(commit, blobs=tuple(addresses))


def _parts(commit: Commit) -> list[BlobRef]:
    """Return the blobs that `commit` itself refers to, except those of its checkpoint."""
    parts = [commit.delta_blob, commit.before_blob, commit.origin.tail_blob if commit.origin else None]
    parts += [commit.replay.blob] if commit.replay else []
    parts += [decision.result for decision in commit.requests]
    parts += [outcome.decision.result for outcome in commit.carried]
    return [part for part in parts if part is not None]
