"""Reads one queued request: its headers, its payload, and the blob that holds its updates.

Invariant: reading terminates for any message. The result is a request, or the reason why the message is not a request.
`HeldRequest` is raised if the message may become readable later, `TransientError` in an outage. An attempt that takes
longer than `apply_timeout` fails.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

import anyio
import structlog
from anyio import to_thread

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.tombstones import read_deleted
from rebaser.change_set.readers.offer_reader import read_offer
from rebaser.change_set.readers.origin_reader import read_fork
from rebaser.change_set.readers.revert_reader import read_own_patch
from rebaser.change_set.readers.target_reader import read_theirs
from rebaser.runtime.context import Context
from rebaser_client.blobs import BlobMissing
from rebaser_client.jetstream import Message
from rebaser_client.log.commits import LASTING_CODES
from rebaser_core import thresholds
from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import BlobRef, BranchStatus, Marking, Reverts
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.definitions import check_definitions
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, RequestId, sequence_id
from rebaser_core.messages import EnqueueUpdatesRequest, decode, decode_updates_blob
from rebaser_core.messages.content_digest import digest_of
from rebaser_core.messages.dead_letter import read_dead_at, read_redrive
from rebaser_core.updates import Derive, Set, Update

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = structlog.get_logger(__name__)

PLAIN_MAX_BYTES = 1024  # maximum size of a request that `read_plain` reads; large ones have to `cooperate`
CHECKED_HERE = 1000  # number of updates above which they are checked in a thread instead of on the event loop
# If reading another log fails with one of these codes, the error may be permanent. A request that fails with such an
# error blocks its change set only for a bounded time.
HELD_CODES = (*LASTING_CODES, "broken_chain", "purged")
INTERNAL_CODES = ("internal", "too_slow")  # waiting does not fix these errors, so the number of attempts is bounded


class HeldRequest(Exception):  # noqa: N818 - a state of a request
    """Raised if a request cannot be read or committed yet. `error` says why. `request` has the parts that could be
    read."""

    def __init__(self, request: QueuedRequest, error: RebaserError) -> None:
        super().__init__(error.message)
        self.request = request
        self.error = error


class RequestReader:
    """Reads the requests of the change set `key`. `room` is the number of bytes that may still be loaded from blobs for
    the current batch."""

    def __init__(self, context: Context, key: ChangeSetKey) -> None:
        self.room = 0
        self._context = context
        self._key = key

    async def read(self, message: Message) -> QueuedRequest:
        """Return the request in `message`, or the reason why it is invalid. Raise `HeldRequest` if it cannot be read
        yet, and `TransientError` in an outage."""
        sequence, redrive = message.stream_sequence, read_redrive(message.headers)
        limits = self._context.settings.limits
        request_id, digest = None, b""
        try:
            request = decode(message.headers, message.data, limits, expect=EnqueueUpdatesRequest)
            request_id = request.id
            if not redrive and (plain := self._plain(message, request)) is not None:
                return plain
            if request.workspace_id != self._key.workspace or request.change_set_id != self._key.change_set:
                text = "the change set in the request differs from that in the NATS subject: use the same one in both"
                return _failed(sequence, None, UnprocessableError(text, code="wrong_change_set"), redrive)
            updates, blob = request.updates, None
            if request.action is not None:
                updates = ()
            elif updates is None:
                updates, blob = await self._fetch(request.updates_address or "")
            size = len(message.data) if blob is None else blob.size
            here = len(updates) <= CHECKED_HERE and size < thresholds.now.updates_on_loop_max_bytes
            content = (updates, request.from_change_set_id, request.recompute, request.expect_at, request.action)
            if here:
                digest = digest_of(*content)
                if Derive in map(type, updates):
                    check_definitions(updates)
            else:
                digest = await _in_thread(digest_of, *content)
                await _in_thread(check_definitions, updates)
        except UnprocessableError as error:
            return _failed(sequence, request_id, error, redrive, digest)
        except (UnsupportedVersion, BlobMissing) as error:
            raise HeldRequest(_failed(sequence, request_id, error, redrive), error) from error
        except RebaserError as error:
            if error.code in INTERNAL_CODES:
                raise HeldRequest(_failed(sequence, request_id, error, redrive), error) from error
            raise
        except Exception as error:
            log.exception("request_unreadable", workspace=self._key.workspace, change_set=self._key.change_set)
            internal = RebaserError(
                f"reading the request failed: {type(error).__name__}; see the log event request_unreadable",
                code="internal",
            )
            raise HeldRequest(_failed(sequence, request_id, internal, redrive), internal) from error
        return QueuedRequest(
            sequence,
            request.id,
            updates,
            request.from_change_set_id,
            None,
            redrive,
            read_dead_at(message.headers) if redrive else 0,
            0,
            request.recompute,
            blob,
            digest,
            request.author,
            request.message,
            request.expect_at,
            request.action,
        )

    def read_plain(self, message: Message) -> QueuedRequest | None:
        """Return what `read` returns for a small request that only sets values, which nearly all requests do. Return
        None for any other request. Raise the errors of `decode`."""
        if len(message.data) > PLAIN_MAX_BYTES or read_redrive(message.headers):  # before the request is decoded
            return None
        limits = self._context.settings.limits
        request = decode(message.headers, message.data, limits, expect=EnqueueUpdatesRequest)
        return self._plain(message, request)

    def _plain(self, message: Message, request: EnqueueUpdatesRequest) -> QueuedRequest | None:
        """Return the queued form of `request` if it is small and only sets values; otherwise, return None. The request
        must not have been redriven."""
        updates = request.updates
        if updates is None or len(message.data) > PLAIN_MAX_BYTES:
            return None
        if len(updates) > thresholds.now.plain_request_max_updates or request.expect_at is not None:
            return None
        if request.action is not None or request.from_change_set_id is not None or request.recompute is not None:
            return None
        if request.workspace_id != self._key.workspace or request.change_set_id != self._key.change_set:
            return None
        for update in updates:
            if type(update) is not Set:
                return None
        digest = digest_of(updates, None, None)
        sequence, author = message.stream_sequence, request.author
        return QueuedRequest(sequence, request.id, updates, digest=digest, author=author, message=request.message)

    async def with_sources(self, request: QueuedRequest, commits: CommitLog, stored_ms: int) -> QueuedRequest:
        """Return `request`, which has an action, with the log data that its action needs, or with a reason to refuse
        the request.

        `commits` is the log of the change set. `stored_ms` is the time at which NATS stored the request (Unix ms).
        Raise `HeldRequest` if the data cannot be read yet, and `TransientError` in an outage.
        """
        settings = self._context.settings
        if not settings.history_for:
            text = "this request needs history, but this server keeps none: set REBASER_HISTORY_FOR above 0"
            refusal = UnprocessableError(text, code="unsupported")
            return replace(request, refusal=refusal)
        try:
            with anyio.fail_after(settings.apply_timeout):
                return await self._read_sources(request, commits, stored_ms)
        except UnprocessableError as error:
            return replace(request, refusal=error)
        except TimeoutError:
            slow = RebaserError(
                f"reading the log took longer than {settings.apply_timeout:g} s (REBASER_APPLY_TIMEOUT)",
                code="too_slow",
            )
            raise HeldRequest(request, slow) from None
        except (TransientError, UnsupportedVersion) as error:
            if isinstance(error, TransientError) and error.code not in HELD_CODES:
                raise
            raise HeldRequest(request, error) from error

    async def _read_sources(self, request: QueuedRequest, commits: CommitLog, stored_ms: int) -> QueuedRequest:
        context, action, state = self._context, request.action, commits.state
        match action:
            case Create():
                fork = await read_fork(context, self._key, action, state, commits.tail_max, stored_ms=stored_ms)
                return replace(request, fork=fork)
            case Apply():
                offer = await read_offer(context, self._key, action)
                return replace(request, offer=offer, patch=offer.patch)
            case Rebase():
                return replace(request, theirs=await read_theirs(context, commits, action))
            case Marking(status=BranchStatus.OPEN) if state.status is BranchStatus.DELETED:
                return replace(request, restored=await read_deleted(context.reader, self._key))
            case Reverts():
                return replace(request, patch=await read_own_patch(context, self._key, action, state))
        return request

    async def _fetch(self, address: str) -> tuple[tuple[Update, ...], BlobRef]:
        limits, seconds = self._context.settings.limits, self._context.settings.apply_timeout
        try:
            with anyio.fail_after(seconds):
                data = await self._context.blobs.get(address, max_bytes=limits.max_request_bytes)
        except TimeoutError:
            raise TransientError(
                f"the blob store took longer than {seconds:g} s (REBASER_APPLY_TIMEOUT); try again later",
                code="blob_timeout",
            ) from None
        self.room -= len(data)
        blob = BlobRef(address, len(data))
        if len(data) < thresholds.now.updates_on_loop_max_bytes:
            return decode_updates_blob(data, limits), blob
        try:
            with anyio.fail_after(seconds):
                return await to_thread.run_sync(decode_updates_blob, data, limits, abandon_on_cancel=True), blob
        except TimeoutError:
            raise RebaserError(
                f"decoding the updates took longer than {seconds:g} s (REBASER_APPLY_TIMEOUT)", code="too_slow"
            ) from None


def _failed(
    sequence: int, request_id: RequestId | None, error: RebaserError, redrive: int, digest: bytes = b""
) -> QueuedRequest:
    """Return a request that cannot be processed because of `error`. If `request_id` is None, the result has an id that
    no client can use."""
    return QueuedRequest(sequence, request_id or sequence_id(sequence), error=error, redrive=redrive, digest=digest)


async def _in_thread(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    return await to_thread.run_sync(function, *arguments, abandon_on_cancel=True)
