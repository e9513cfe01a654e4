"""Stores requests in the request stream, and retries until NATS confirms.

Invariant: each attempt has the request id and a digest of the content. The duplicate window of the stream drops most
repetitions. Servers recognize the other repetitions as long as they remember the outcome of the request, and no request
is repeated for longer than that. A different request with the same id has another digest, so the stream stores it, and
servers reject it.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from rebaser_client.backoff import Backoff
from rebaser_client.blobs import BlobStore
from rebaser_client.blobs.freshness import Freshness
from rebaser_client.errors import NotReadyError, TooLarge
from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError, NoRespondersError
from rebaser_client.jetstream.errors import MESSAGE_TOO_LARGE, STREAM_NOT_FOUND, is_full
from rebaser_client.jetstream.infos import PubAck
from rebaser_client.nats.errors import NotConnectedError
from rebaser_client.nats.replies import PendingRequest
from rebaser_client.requests.backpressure import Backpressure
from rebaser_core import thresholds
from rebaser_core.branches.branch import Action
from rebaser_core.definitions import check_definitions, is_formula
from rebaser_core.encoding.envelope import CBOR, MESSAGE_ID, REPLY_INBOX, ContentType
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import REGISTRY, EncodedUpdates, EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Recompute, Update, check_updates, parse_recompute

if TYPE_CHECKING:
    from rebaser_client.requests.spans import RequestSpans

PUBLISH_TIMEOUT = 5.0  # seconds for one attempt
RETRY_MIN, RETRY_MAX = 0.05, 1.0  # seconds between attempts, before jitter
REPEAT_FOR = 300.0  # seconds; by default, servers remember outcomes three times as long
MAX_FORMULAS_ON_LOOP = 2000  # characters of formulas that are parsed on the event loop, which takes about 10 ms
NOT_READY_AFTER = 2.0  # seconds without responders, after which the client checks whether the stream exists


class OutgoingRequest:
    """An encoded request.

    - `inbox`: the subject for the answer; empty if the caller does not wait for the answer.
    - `sequence`: the stream sequence of the newest message with this request; 0 before the request is stored.
    - `repeat_until`: the loop time until which the request may be sent again; 0 before the first attempt.
    - `blob`: the content of the blob with the updates; None if there is no blob, or if the request is stored.
      `freshness`: the age of that blob; None if there was no blob.
    - `spans`: the spans of the request; None if it belongs to no trace.
    """

    __slots__ = (
        "_copies", "_message_id", "blob", "freshness", "headers", "inbox", "key", "payload", "repeat_until", "sequence",
        "spans",
    )  # fmt: skip

    def __init__(
        self, key: ChangeSetKey, request_id: RequestId, inbox: str, headers: dict[str, str], payload: bytes
    ) -> None:
        self.key = key
        self.inbox = inbox
        self.payload = payload
        self.headers = headers
        self.sequence = 0
        self.repeat_until = 0.0
        self.blob: bytes | None = None
        self.freshness: Freshness | None = None
        self.spans: RequestSpans | None = None
        digest = blake2b(payload, digest_size=8).hexdigest()
        self._message_id = headers[MESSAGE_ID] = f"{key.workspace}.{key.change_set}.{request_id}#{digest}"
        self._copies = 0
        if inbox:
            headers[REPLY_INBOX] = inbox

    @property
    def is_copy(self) -> bool:
        return self._copies > 0

    def mark_as_copy(self) -> None:
        """Change the message id, so that the stream stores the request again. The request id stays the same."""
        self._copies += 1
        self.headers[MESSAGE_ID] = f"{self._message_id}#{self.inbox}#{self._copies}"

    def trace(self, spans: "RequestSpans | None", updates: Iterable[Update]) -> None:
        """Add the request, which has these `updates`, to the trace of `spans` before it is stored. If `spans` is None,
        do nothing."""
        if spans is not None:
            self.spans = spans
            count = len(updates) if isinstance(updates, Sized) else None
            spans.publish_begins(self.headers, len(self.payload), count)

    def note_undecided(self, now: float) -> None:
        """Extend `repeat_until`, because the request is still queued.

        This does nothing if the queued message is a copy, because the first message may have been decided long ago.
        """
        if not self.is_copy:
            self.repeat_until = now + REPEAT_FOR


class RequestSender:
    """Encodes and stores the requests of one client."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        blobs: BlobStore,
        limits: Limits,
        backpressure: Backpressure,
        *,
        content_type: ContentType = CBOR,
        check_formulas: bool = True,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs
        self._limits = limits
        self._content_type = content_type
        self._check_formulas = check_formulas
        self._loop = asyncio.get_running_loop()
        self._backpressure = backpressure

    async def prepare(
        self,
        key: ChangeSetKey,
        request_id: RequestId,
        updates: Iterable[Update],
        deadline: float,
        *,
        from_change_set: str | None,
        recompute: Recompute | None = None,
        author: str = "",
        message: str = "",
        expect_at: int | None = None,
        action: Action | None = None,
        inbox: str = "",
    ) -> OutgoingRequest:
        """Check and encode a request. Updates that are too large for a message are put in the blob store.

        `EncodedUpdates` of that size are not checked, because they were checked when they were encoded. `action` is an
        action that the server executes instead of updates. Raise `UnprocessableError` for invalid updates, `TooLarge`
        if the request is too large, and `TimeoutError` at `deadline` (loop time).
        """
        if not REGISTRY.is_built:  # the registry contains the models that are necessary to decode the answer
            await anyio.to_thread.run_sync(REGISTRY.build)
        if recompute is not None:
            parse_recompute(recompute.to_wire(), self._limits)
        inline_max = min(self._js.connection.max_payload // 2, thresholds.now.inline_max_bytes)
        checked: tuple[Update, ...] | None = None
        blob: bytes | None = None
        if action is None:
            if isinstance(updates, EncodedUpdates) and len(updates.blob) > inline_max:
                blob = updates.blob
            else:
                checked = check_updates(updates, self._limits)
                if Derive in map(type, checked):
                    await self._check_definitions(checked)
        request = EnqueueUpdatesRequest(
            request_id, key.workspace, key.change_set, checked, None, from_change_set, recompute,
            author, message, expect_at, action,
        )  # fmt: skip
        if blob is None:
            headers, payload = encode(request, self._content_type)
            if checked is None or len(payload) <= inline_max:
                return OutgoingRequest(key, request_id, inbox, headers, payload)
            blob = encode_updates_blob(checked)
        if len(blob) > self._limits.max_request_bytes:
            raise TooLarge(len(blob), self._limits.max_request_bytes)
        with translate_missing_stream(), anyio.fail_after(deadline - self._loop.time()):
            freshness, address = Freshness(), await self._blobs.put(blob)
        headers, payload = encode(replace(request, updates=None, updates_address=address), self._content_type)
        outgoing = OutgoingRequest(key, request_id, inbox, headers, payload)
        outgoing.blob, outgoing.freshness = blob, freshness
        return outgoing

    async def _renew(self, request: OutgoingRequest, blob: bytes) -> None:
        """Store `blob`, which has the updates, again if it is old enough to be deleted, which happens if no message
        refers to it."""
        if request.freshness is not None and not request.freshness.is_fresh:
            freshness = Freshness()
            await self._blobs.put(blob)
            request.freshness = freshness

    async def _check_definitions(self, updates: Sequence[Update]) -> None:
        check = partial(check_definitions, updates, formulas=self._check_formulas)
        if self._check_formulas and sum(map(_formula_length, updates)) > MAX_FORMULAS_ON_LOOP:
            await anyio.to_thread.run_sync(check, abandon_on_cancel=True)
        else:
            check()

    async def start(self, request: OutgoingRequest, deadline: float) -> PendingRequest:
        """Publish the request without awaiting its ack.

        The caller has to pass the ack to `accept`, or the error to `store` if there is no ack.
        """
        now = self._loop.time()
        request.repeat_until = request.repeat_until or now + REPEAT_FOR
        timeout = max(min(deadline - now, PUBLISH_TIMEOUT), 0.0)
        subject = self._subjects.requests(request.key)
        if request.blob is not None:
            await self._renew(request, request.blob)
        return await self._js.connection.start_request(subject, request.payload, request.headers, timeout)

    def accept(self, request: OutgoingRequest, ack: PubAck) -> bool:
        """Record that NATS has stored the request. Return False if it has to be sent again, as a copy."""
        self._backpressure.accepted(request.key)
        request.sequence, request.blob = ack.sequence, None
        if not ack.duplicate or not request.inbox or request.is_copy:
            if request.spans is not None:
                request.spans.stored()
            return True
        # An earlier call has stored this request, which may have been decided long ago. To get an answer on the current
        # inbox, the request has to be stored as a new message.
        request.mark_as_copy()
        return False

    async def store(  # noqa: C901 - one branch for each kind of failure
        self, request: OutgoingRequest, deadline: float, first: RebaserError | None = None
    ) -> None:
        """Store the request, and return when NATS has confirmed it. `first` is the error of an earlier attempt, if any.

        Raise `TimeoutError` at `deadline` (loop time); in that case, the request may be stored. Raise `QueueFull`,
        `TooLarge`, `NotReadyError`, or, at the deadline, `NotConnectedError`; in these cases, the request is not
        stored.
        """
        started = self._loop.time()
        maybe_stored, not_connected, backoff = False, None, None
        request.repeat_until = request.repeat_until or started + REPEAT_FOR
        deadline = min(deadline, request.repeat_until)
        while (remaining := deadline - self._loop.time()) > 0:
            failed_before, first = first, None
            try:
                if request.blob is not None and failed_before is None:
                    await self._renew(request, request.blob)
                ack = await self._attempt(request, remaining, failed_before)
            except ApiError as error:
                if is_full(error) and not maybe_stored:
                    raise self._backpressure.refused(request.key, error) from error
                if error.err_code == MESSAGE_TOO_LARGE:
                    raise TooLarge(len(request.payload), None) from error
            except NoRespondersError:
                if self._loop.time() - started > NOT_READY_AFTER and not maybe_stored:
                    with anyio.move_on_after(remaining):
                        await self._check_ready()
            except NotConnectedError as error:
                not_connected = error
            except TransientError:
                maybe_stored = True
            else:
                if self.accept(request, ack):
                    return
                continue
            backoff = backoff or Backoff(RETRY_MIN, RETRY_MAX)  # nearly all requests need none
            await anyio.sleep(backoff.next_delay())
        if not_connected is not None and not maybe_stored:
            raise not_connected
        raise TimeoutError

    def _attempt(
        self, request: OutgoingRequest, remaining: float, failed_before: RebaserError | None
    ) -> Awaitable[PubAck]:
        """Return an awaitable that publishes the request and returns its ack. If an earlier attempt failed, raise its
        error, `failed_before`, instead."""
        if failed_before is not None:
            raise failed_before
        subject = self._subjects.requests(request.key)
        return self._js.publish(subject, request.payload, request.headers, timeout=min(remaining, PUBLISH_TIMEOUT))

    async def _check_ready(self) -> None:
        """Raise `NotReadyError` if the streams do not exist, or if JetStream is not available.

        Otherwise, the caller should retry, because a stream that exists may have no leader for some seconds.
        """
        try:
            with translate_missing_stream():
                await self._js.stream_info(self._subjects.requests_stream)
        except NoRespondersError as error:
            raise NotReadyError from error
        except (ApiError, NoAnswerError):
            pass


def _formula_length(update: Update) -> int:
    """Return the length of the formula in `update`, but at least 20, because each formula has a fixed cost.

    Return 0 if the update has no formula.
    """
    return max(20, len(str(update.params.get("expr")))) if isinstance(update, Derive) and is_formula(update) else 0


@contextmanager
def translate_missing_stream() -> Iterator[None]:
    """Raise `NotReadyError` instead of the error with which NATS reports that a stream does not exist."""
    try:
        yield
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise NotReadyError from error
        raise
