"""Garbage collection: which blobs a run moves to the trash, which it erases, and which it brings back.

A run lists the stored blobs, then reads every address that a stored message names, and then plans (`plan`). A blob that
no message names is a candidate. It moves to the trash if it was stored more than a grace period ago, and has been a
candidate in every run of the last grace period. After another grace period, it is erased from the trash. A run brings
back a blob in the trash that a message names.

Before a writer names a blob in a message, it has stored the blob, renewed it, or read its address in a message less
than `FRESH_FOR` ago. So a run reads every such message before a blob that the message names can be erased.

Invariant: only `plan` decides what is deleted. Its callers find out which blobs are stored and which are needed.
"""

from collections.abc import Iterable, Mapping

from rebaser_core.blobs.address import ADDRESS_BYTES, address_of, address_of_bytes, bytes_of_address
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RESERVED, ChangeSetKey
from rebaser_core.record import record

FRESH_FOR = 900.0  # seconds; a blob that was stored earlier is stored again before a new message names it
GRACE = 86_400.0  # seconds
MIN_GRACE = 3_600.0  # seconds: twice `FRESH_FOR`, doubled to allow for different clocks
MAX_SKEW = 1_800.0  # seconds by which the clocks of NATS and of a server may differ
MAGIC = b"rebaser-candidates-1"
TIME_BYTES = 8
NEVER = 2**63  # Unix ms
GC_KEY = ChangeSetKey(RESERVED, "gc")


@record
class StoredBlob:
    """A blob in a store, or in its trash (`trashed`), since `stored_ms` (Unix time).

    `version` changes when the blob is stored again or moved. A plan for one version is never carried out on another.
    """

    address: str
    size: int
    stored_ms: int
    version: str
    trashed: bool = False


@record
class Plan:
    """The actions of a run. `candidates` contains, by address, the start of the first run that found the blob unneeded
    (Unix ms)."""

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
    """Plan a run that began at `now_ms`. `last` are the candidates of the last run. Times are those of the NATS
    server."""
    candidates: dict[str, int] = {}
    due: list[StoredBlob] = []
    for blob in unneeded:
        since = min(last.get(blob.address, now_ms), now_ms)
        # A blob that was stored again after `since` may have been needed again. A move to the trash does not count as
        # storing.
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
    """Return the blob that lists the candidates of a run: `MAGIC`, then for each candidate its hash and its time in
    `Plan.candidates` (8 bytes, big-endian).

    The hash of `run`, the id of the run, is listed as a candidate with the time `NEVER`. So no two runs have the same
    list, even in different installations, and from the list, the next run can tell whether it reads the right logs.
    """
    marked = {**candidates, address_of(run.encode()): NEVER}
    rows = [bytes_of_address(address) + since.to_bytes(TIME_BYTES) for address, since in sorted(marked.items())]
    return MAGIC + b"".join(rows)


def decode_candidates(data: bytes) -> dict[str, int]:
    """Decode a blob of `encode_candidates`; raises `UnprocessableError`."""
    step = ADDRESS_BYTES + TIME_BYTES
    if not data.startswith(MAGIC) or (len(data) - len(MAGIC)) % step:
        raise UnprocessableError("the blob is not a list of candidates", code="malformed")
    rows = [data[start : start + step] for start in range(len(MAGIC), len(data), step)]
    read = {address_of_bytes(row[:ADDRESS_BYTES]): int.from_bytes(row[ADDRESS_BYTES:]) for row in rows}
    return {address: since for address, since in read.items() if since != NEVER}
