"""Decides which blobs a garbage collection moves to the trash, which it erases, and which it restores.

A garbage collection lists the stored blobs, then reads the addresses of all blobs to which stored messages refer, and
then calls `plan`. A blob to which no message refers is a candidate. A candidate moves to the trash if it was stored
more than a grace period ago and has been a candidate in every collection during the last grace period. After another
grace period in the trash, it is erased. A blob in the trash to which a message refers is restored.

A program may refer to a blob in a message only if, during the last `FRESH_FOR` seconds, it has stored or renewed the
blob, or read its address in a message. The grace period is longer than `FRESH_FOR`, so a collection always reads a
message that refers to a blob before the blob could be erased.

Invariant: only `plan` decides what is deleted. Its callers determine which blobs are stored and which are needed.
"""

from collections.abc import Iterable, Mapping

from rebaser_core.blobs.address import ADDRESS_BYTES, address_of, address_of_bytes, bytes_of_address
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RESERVED, ChangeSetKey
from rebaser_core.record import record

FRESH_FOR = 900.0  # seconds; an older blob is stored again before a new message refers to it
GRACE = 86_400.0  # seconds; the default grace period
MIN_GRACE = 3_600.0  # the shortest grace period in seconds: twice `FRESH_FOR`, plus `MAX_SKEW`
MAX_SKEW = 1_800.0  # the maximum difference between the clocks of NATS and of a server, in seconds
MAGIC = b"rebaser-candidates-1"  # the first bytes of a list of candidates
TIME_BYTES = 8
NEVER = 2**63  # a time that no candidate has (Unix ms)
GC_KEY = ChangeSetKey(RESERVED, "gc")


@record
class StoredBlob:
    """A blob in a blob store, or in the trash of the store (`trashed`).

    `size` is in bytes. `stored_ms` is the Unix time at which the blob was stored or moved. `version` changes when the
    blob is stored again or moved. A plan for one version of a blob is never carried out on another version.
    """

    address: str
    size: int
    stored_ms: int
    version: str
    trashed: bool = False


@record
class Plan:
    """The actions of one garbage collection: blobs to move to the trash, to erase from it, and to restore from it.

    `candidates` contains the addresses of all blobs to which no message refers. It maps each address to the start of
    the collection that first found the blob unneeded (Unix ms).
    """

    candidates: dict[str, int]
    trash: tuple[StoredBlob, ...]
    erase: tuple[StoredBlob, ...]
    restore: tuple[StoredBlob, ...]


def plan(
    unneeded: Iterable[StoredBlob],
    needed_in_trash: Iterable[StoredBlob],
    last: Mapping[str, int],
    now_ms: int,
    grace_ms: int,
) -> Plan:
    """Plan a garbage collection that began at `now_ms`.

    `unneeded` are all blobs, in the store or in its trash, to which no message refers. `needed_in_trash` are blobs in
    the trash to which a message refers. `last` are the candidates of the previous collection. `grace_ms` is the grace
    period. All times are Unix times (ms) by the NATS server's clock.
    """
    candidates: dict[str, int] = {}
    due: list[StoredBlob] = []
    for blob in unneeded:
        since = min(last.get(blob.address, now_ms), now_ms)
        # If the blob was stored again after `since`, it may have been needed in the meantime, so its time as a
        # candidate starts over. Moving it to the trash does not count as storing it again.
        if not blob.trashed and blob.stored_ms > since - FRESH_FOR * 1000:
            since = now_ms
        candidates[blob.address] = since
        if now_ms - since >= grace_ms and now_ms - blob.stored_ms >= grace_ms:
            due.append(blob)
    return Plan(
        candidates,
        tuple(blob for blob in due if not blob.trashed),
        tuple(blob for blob in due if blob.trashed),
        tuple(needed_in_trash),
    )


def encode_candidates(candidates: Mapping[str, int], run: str) -> bytes:
    """Encode the candidates of a garbage collection as a blob.

    The blob contains `MAGIC`, and then each candidate's hash and its time in `Plan.candidates` (8 bytes, big-endian).
    The list also contains the hash of `run`, the collection's id, with the time `NEVER`. This makes each list unique,
    even among different installations, so the next collection can check that it reads the logs of the same
    installation.
    """
    marked = {**candidates, address_of(run.encode()): NEVER}
    rows = [bytes_of_address(address) + since.to_bytes(TIME_BYTES) for address, since in sorted(marked.items())]
    return MAGIC + b"".join(rows)


def decode_candidates(data: bytes) -> dict[str, int]:
    """Decode a blob that `encode_candidates` has encoded. Raise `UnprocessableError` if `data` is not a list of
    candidates."""
    step = ADDRESS_BYTES + TIME_BYTES
    if not data.startswith(MAGIC) or (len(data) - len(MAGIC)) % step:
        raise UnprocessableError("the blob is not a list of candidates for garbage collection", code="malformed")
    rows = [data[start : start + step] for start in range(len(MAGIC), len(data), step)]
    read = {address_of_bytes(row[:ADDRESS_BYTES]): int.from_bytes(row[ADDRESS_BYTES:]) for row in rows}
    return {address: since for address, since in read.items() if since != NEVER}
