"""Decides which blobs a garbage collection moves to the trash, which it erases, and which it restores.

A run of the garbage collection lists the stored blobs, then reads all addresses that stored messages name, and then
calls `plan`. A blob that no message names is a candidate. It moves to the trash if it was stored more than a grace
period ago and has been a candidate in every run of the last grace period. After another grace period in the trash, it
is erased. A blob in the trash that a message names is restored.

A program may name a blob in a message only if, during the last `FRESH_FOR` seconds, the program stored or renewed the
blob, or read its address in a message. The grace period is longer than `FRESH_FOR`. So a run reads every message that
names a blob before the blob can be erased.

Invariant: only `plan` decides what is deleted. Its callers determine which blobs are stored and which are needed.
"""

from collections.abc import Iterable, Mapping

from rebaser_core.blobs.address import ADDRESS_BYTES, address_of, address_of_bytes, bytes_of_address
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RESERVED, ChangeSetKey
from rebaser_core.record import record

FRESH_FOR = 900.0  # seconds; an older blob is stored again before a new message names it
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
    """The actions of one run: blobs to move to the trash, to erase from the trash, and to restore from the trash.

    `candidates` maps the address of each blob that no message names to a Unix time (ms): the start of the first run
    that found the blob to be unneeded.
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
    """Plan a run that began at `now_ms`.

    `unneeded` are all blobs, in the store or in its trash, that no message names. `needed_in_trash` are blobs in the
    trash that a message names. `last` are the candidates of the previous run. `grace_ms` is the grace period. All times
    are read from the clock of the NATS server (Unix ms).
    """
    candidates: dict[str, int] = {}
    due: list[StoredBlob] = []
    for blob in unneeded:
        since = min(last.get(blob.address, now_ms), now_ms)
        # If the blob was stored again after `since`, it may have been needed meanwhile, so its time as a candidate
        # begins anew. A move to the trash does not count as storing.
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
    """Encode the candidates of a run as a blob.

    The blob has `MAGIC`, then for each candidate its hash and its time in `Plan.candidates` (8 bytes, big-endian). The
    hash of `run`, which is the id of the run, is also listed, with the time `NEVER`. So no two runs have the same list,
    even in different installations. Therefore, the next run can check that it reads the logs of the same installation.
    """
    marked = {**candidates, address_of(run.encode()): NEVER}
    rows = [bytes_of_address(address) + since.to_bytes(TIME_BYTES) for address, since in sorted(marked.items())]
    return MAGIC + b"".join(rows)


def decode_candidates(data: bytes) -> dict[str, int]:
    """Decode the output of `encode_candidates`. Raise `UnprocessableError` if `data` is not such an output."""
    step = ADDRESS_BYTES + TIME_BYTES
    if not data.startswith(MAGIC) or (len(data) - len(MAGIC)) % step:
        raise UnprocessableError("the blob is not a list of candidates for garbage collection", code="malformed")
    rows = [data[start : start + step] for start in range(len(MAGIC), len(data), step)]
    read = {address_of_bytes(row[:ADDRESS_BYTES]): int.from_bytes(row[ADDRESS_BYTES:]) for row in rows}
    return {address: since for address, since in read.items() if since != NEVER}
