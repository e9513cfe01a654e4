"""Names, in the header of a commit, the blobs that the log needs from that commit on.

Invariant: every blob that a stored message needs is named by that message, or by an older one that is still in the log.
"""

from dataclasses import replace

from rebaser_client.blobs import BlobStore
from rebaser_core.commit import Commit
from rebaser_core.messages import encode_addresses
from rebaser_core.messages.branch_headers import LIST, MAX_ADDRESSES

ADDRESS_BYTES = 72  # bytes that one address takes in a header


def needs_blobs(commit: Commit) -> bool:
    """Return whether `commit` has parts in blobs, or says that the log needs certain blobs from this commit on."""
    return bool(commit.blobs or commit.delta_blob or commit.before_blob or (commit.origin and commit.origin.tail_blob))


async def with_blobs_named(blobs: BlobStore, commit: Commit, max_bytes: int) -> Commit:
    """Return `commit`, which needs blobs, with the addresses of all of them.

    If they are too many for a header, or would take more than `max_bytes` there, they are listed in a blob, and the
    header names that blob. Raises `TransientError` if the blob cannot be stored.
    """
    parts = (commit.delta_blob, commit.before_blob, commit.origin.tail_blob if commit.origin else None)
    addresses = dict.fromkeys([*commit.blobs, *(part.address for part in parts if part is not None)])
    if len(addresses) > min(MAX_ADDRESSES, max_bytes // ADDRESS_BYTES):
        addresses = {LIST + await blobs.put(encode_addresses(addresses)): None}
    return replace(commit, blobs=tuple(addresses))
