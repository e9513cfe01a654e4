"""Carries out a run of the garbage collection.

Each run appends a commit of the kind `gc` to the log of the reserved change set `GC_KEY`. If two runs happen at once,
one of them appends its commit, and the other one is fenced and deletes nothing. The log records the latest runs. Its
newest commit refers to a blob that lists the candidates: unneeded blobs that a later run may delete.

Invariant: nothing is deleted before the commit of the run is stored. If the process dies afterwards, the next run finds
the same candidates and finishes the work.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import structlog

from rebaser.gc.finding import Found, Tables, find_garbage
from rebaser.gc.installations import check_alone
from rebaser.runtime.concurrency import run_concurrently
from rebaser_client.blobs import CollectableBlobs
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import WRONG_LAST_SEQUENCE
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.blobs.garbage import (
    GC_KEY,
    GRACE,
    MAX_SKEW,
    Plan,
    StoredBlob,
    decode_candidates,
    encode_candidates,
    plan,
)
from rebaser_core.commit import BlobRef, Collection, Commit, Kind
from rebaser_core.errors import ConfigError, DvuError, FencedError, RebaserError, TransientError
from rebaser_core.messages import check_commit, decode_commit, encode_commit
from rebaser_core.record import record
from rebaser_core.streams.subjects import Subjects

log = structlog.get_logger(__name__)

CONCURRENT = 8  # number of blobs that are moved or erased concurrently
RUNS_KEPT = 100  # number of commits that are kept in the log of `GC_KEY`
MANY = 100  # if no message needs any of this many blobs or more, a run deletes none: something must be wrong
LOST = (
    "no message needs any of the {} blobs: the logs may be lost, or not restored yet, or the blob store may belong to "
    "another installation; nothing was deleted; if no blob is to be kept, empty the blob store by other means"
)
MISREAD = (
    "the logs that were read do not contain the last run of the garbage collection, so they are not those of this "
    "installation: check that Spark's machines reach the same NATS under its URL, with the same account and prefix; "
    "nothing was deleted"
)


@record
class Run:
    """The result of a run. `sequence` is the log sequence of its commit, 0 for a dry run. `trashed`, `erased` and
    `restored` are the numbers of blobs that it moved to the trash, erased, and restored from the trash. A dry run
    counts the blobs without moving or erasing them."""

    sequence: int
    found: Found
    collection: Collection
    trashed: int
    erased: int
    restored: int


class Collector:
    """Collects the garbage of one installation. `owner` is the name of this program in the log. `grace` is the number
    of seconds for which a blob must have been unneeded before it is deleted."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        blobs: CollectableBlobs,
        tables: Tables[Any],
        *,
        owner: str,
        new_id: Callable[[], str],
        grace: float = GRACE,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs
        self._tables = tables
        self._owner = owner
        self._new_id = new_id
        self._grace_ms = int(grace * 1000)

    async def run(self, *, dry: bool = False) -> Run:
        """Find the garbage, and delete the blobs that are due. If `dry` is true, only find the garbage, and record
        nothing.

        Raise `FencedError` if another run was recorded meanwhile; in that case, this run has deleted nothing. Raise
        `TransientError` if NATS or the blob store is not available, and `DvuError` if Spark is not available; some of
        the due blobs may have been deleted before the error.

        If the run may not have found all needed blobs, it deletes nothing and raises an error: `ConfigError` if another
        installation uses the blob store, or if there are `MANY` blobs or more and no message needs any of them;
        `DvuError` (`gc_misread`) if Spark read another log; `TransientError` (`clocks_differ`); or an error of
        `ReferenceReader` if it cannot read a message.
        """
        previous = await self._js.last(self._subjects.commits_stream, self._subjects.commits(GC_KEY))
        listed, last = await self._candidates(previous.headers, previous.data) if previous is not None else ("", {})
        now_ms = await self._checked_now_ms(register=not dry)
        found = await find_garbage(self._tables)
        if any(blob.address == listed for blob in found.unneeded):
            raise DvuError(MISREAD, code="gc_misread")
        if found.blobs >= MANY and len(found.unneeded) >= found.blobs:
            raise ConfigError(LOST.format(found.blobs), code="gc_nothing_needed")
        run_id = self._new_id()
        planned = plan(found.unneeded, found.needed_in_trash, last, now_ms, self._grace_ms)
        data = encode_candidates(planned.candidates, f"{run_id} {now_ms}")
        if dry:
            collection = self._describe(planned, now_ms, BlobRef("", len(data)))
            return Run(0, found, collection, collection.trash, collection.erase, collection.restore)
        collection = self._describe(planned, now_ms, BlobRef(await self._blobs.put(data), len(data)))
        sequence = await self._append(run_id, previous.sequence if previous is not None else 0, now_ms, collection)
        restored = await self._each(planned.restore, self._blobs.restore)
        trashed = await self._each(planned.trash, self._blobs.discard)
        erased = await self._each(planned.erase, self._blobs.erase)
        with suppress(NotAllowed):  # operators may not purge logs; a later run of a server does it
            await self._js.purge(self._subjects.commits_stream, self._subjects.commits(GC_KEY), keep=RUNS_KEPT)
        log.info(
            "garbage_collected",
            seq=sequence,
            blobs=found.blobs,
            bytes=found.size,
            candidates=collection.candidates,
            trashed=trashed,
            erased=erased,
            restored=restored,
        )
        return Run(sequence, found, collection, trashed, erased, restored)

    async def _checked_now_ms(self, *, register: bool) -> int:
        """Return the time on the clock of NATS in Unix milliseconds. NATS also dates stored messages with this clock.

        Raise `TransientError` if this machine's clock differs from it by more than `MAX_SKEW` seconds: one of the two
        clocks is wrong. Raise `ConfigError` if another installation uses the blob store. If `register` is true, leave a
        note in the store that this installation uses it.
        """
        info = await self._js.stream_info(self._subjects.commits_stream)
        if not info.now:
            raise TransientError("NATS does not report its time: garbage collection needs nats-server 2.10 or newer")
        await check_alone(self._blobs, info, register=register)
        now = datetime.fromisoformat(info.now).timestamp()
        if abs(now - time.time()) > MAX_SKEW:
            text = f"the clocks of NATS and of this machine differ by {abs(now - time.time()):.0f} s: synchronize them"
            raise TransientError(f"{text}; until then nothing is deleted", code="clocks_differ")
        return int(now * 1000)

    async def _candidates(self, headers: Mapping[str, str], data: bytes) -> tuple[str, dict[str, int]]:
        """Return the address of the blob in which the last run listed its candidates, and these candidates.

        If the blob cannot be read, return no candidates. The grace period of each unneeded blob then starts again.
        """
        address = ""
        try:
            collection = decode_commit(headers, data).collection
            if collection is None:
                return "", {}
            address = collection.listed.address
            return address, decode_candidates(await self._blobs.get(address))
        except RebaserError as error:
            log.warning("gc_candidates_unreadable", code=error.code, reason=error.message)
            return address, {}

    def _describe(self, planned: Plan, now_ms: int, listed: BlobRef) -> Collection:
        return Collection(
            now_ms,
            self._grace_ms,
            len(planned.candidates),
            len(planned.trash),
            sum(blob.size for blob in planned.trash),
            len(planned.erase),
            sum(blob.size for blob in planned.erase),
            len(planned.restore),
            listed,
        )

    async def _append(self, run_id: str, previous: int, now_ms: int, collection: Collection) -> int:
        commit = Commit(
            id=run_id,
            previous=previous,
            kind=Kind.GC,
            at_ms=now_ms,
            owner=self._owner,
            applied=None,
            covers=None,
            collection=collection,
            blobs=(collection.listed.address,),
        )
        headers, payload = encode_commit(commit)
        check_commit(commit, headers, payload)
        subject = self._subjects.commits(GC_KEY)
        try:
            ack = await self._js.publish(subject, payload, headers, expected_last_subject_sequence=previous)
        except ApiError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                raise FencedError(
                    "another run of the garbage collection was recorded meanwhile; this run deleted nothing"
                ) from None
            raise
        return ack.sequence

    async def _each(self, blobs: tuple[StoredBlob, ...], act: Callable[[StoredBlob], Awaitable[bool]]) -> int:
        """Call `act` with each of `blobs`, several at a time. Return how many calls returned true."""
        done = 0

        async def one(blob: StoredBlob) -> None:
            nonlocal done
            acted = await act(blob)
            done += acted

        await run_concurrently(blobs, one, CONCURRENT)
        return done
