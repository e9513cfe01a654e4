"""Stores requests: what `enqueue_updates` sends, tried again until NATS confirms it.

Invariant: each try of a request carries its id, and a digest of its content. The duplicate window of the stream drops
most repetitions, and the log of the change set knows the rest, for as long as it remembers outcomes; nothing is
repeated for longer than that. Another request under the same id is no repetition to the stream: the log refuses it.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread

from rebaser_client.blobs import BlobStore
from rebaser_client.errors import NotConnectedError, NotReadyError, TooLarge
from rebaser_client.jetstream import ApiError, JetStream, NoRespondersError, RequestTimeoutError
from rebaser_client.jetstream.errors import MESSAGE_TOO_LARGE, STREAM_NOT_FOUND, is_full
from rebaser_client.requests.backpressure import Backpressure
from rebaser_core import thresholds
from rebaser_core.definitions import check_definitions, is_formula
from rebaser_core.encoding.envelope import CBOR, MESSAGE_ID, REPLY_INBOX, ContentType
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.subjects import Subjects
from rebaser_core.updates import Derive, Recompute, Update, check_updates, parse_recompute

PUBLISH_TIMEOUT = 5.0  # seconds for one try
RETRY_MAX = 1.0  # seconds between tries
REPEAT_FOR = 300.0  # seconds; a third of the time for which servers remember outcomes, unless told otherwise
FORMULAS_HERE = 2000  # characters of formulas that are read on the event loop: some 10 ms
NOT_READY_AFTER = 2.0  # seconds without anybody to store requests, until we ask whether there is a stream


class OutgoingRequest:
    """A request as it is stored. `sequence` is its newest place in the stream, 0 before it has one.

    `repeat_until` (of the loop's clock, 0 before the first try) is when it is sent for the last time.
    """

    __slots__ = ("_copies", "_message_id", "headers", "inbox", "key", "payload", "repeat_until", "sequence")

    def __init__(
        self, key: ChangeSetKey, request_id: RequestId, inbox: str, headers: dict[str, str], payload: bytes
    ) -> None:
        """`inbox`: where the answer is awaited; empty if it is not."""
        self.key = key
        self.inbox = inbox
        self.payload = payload
        self.headers = headers
        self.sequence = 0
        self.repeat_until = 0.0
        digest = hashlib.blake2b(payload, digest_size=8).hexdigest()
        self._message_id = headers[MESSAGE_ID] = f"{key}.{request_id}#{digest}"
        self._copies = 0
        if inbox:
            headers[REPLY_INBOX] = inbox

    @property
    def is_copy(self) -> bool:
        return self._copies > 0

    def mark_as_copy(self) -> None:
        """Have the stream take the next one for another message. The log still knows it by the request's id."""
        self._copies += 1
        self.headers[MESSAGE_ID] = f"{self._message_id}#{self.inbox}#{self._copies}"

    def note_undecided(self, now: float) -> None:
        """Note that its message still waits. Of a copy that tells nothing."""
        if not self.is_copy:
            self.repeat_until = now + REPEAT_FOR


class RequestSender:
    """Belongs to a client."""

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
        inbox: str = "",
    ) -> OutgoingRequest:
        """Updates too large for a message go to the blob store.

        Raises `UnprocessableError`, `TooLarge`, and `TimeoutError` at `deadline` (of the loop's clock).
        """
        checked = check_updates(updates, self._limits)
        await self._check_definitions(checked)
        if recompute is not None:
            parse_recompute(recompute.to_wire(), self._limits)
        request = EnqueueUpdatesRequest(
            request_id, key.workspace, key.change_set, checked, None, from_change_set, recompute
        )
        headers, payload = encode(request, self._content_type)
        if len(payload) > min(self._js.connection.max_payload // 2, thresholds.now.inline):
            blob = encode_updates_blob(checked)
            if len(blob) > self._limits.max_request_bytes:
                raise TooLarge(len(blob), self._limits.max_request_bytes)
            with translate_missing_stream(), anyio.fail_after(deadline - self._loop.time()):
                address = await self._blobs.put(blob)
            headers, payload = encode(replace(request, updates=None, updates_address=address), self._content_type)
        return OutgoingRequest(key, request_id, inbox, headers, payload)

    async def _check_definitions(self, updates: Sequence[Update]) -> None:
        look = partial(check_definitions, updates, formulas=self._check_formulas)
        if self._check_formulas and sum(map(_formula_length, updates)) > FORMULAS_HERE:
            await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        else:
            look()

    async def store(self, request: OutgoingRequest, deadline: float) -> None:
        """Store it, confirmed, before `deadline` (of the loop's clock).

        Raises `TimeoutError`: it may be stored. After `NotConnectedError`, which comes only then, too, and `QueueFull`,
        `TooLarge` and `NotReadyError` it is not.
        """
        subject = self._subjects.requests(request.key)
        pause, started = 0.05, self._loop.time()
        maybe_stored, unsent = False, None
        request.repeat_until = request.repeat_until or started + REPEAT_FOR
        deadline = min(deadline, request.repeat_until)
        while (left := deadline - self._loop.time()) > 0:
            try:
                ack = await self._js.publish(
                    subject, request.payload, request.headers, timeout=min(left, PUBLISH_TIMEOUT)
                )
            except ApiError as error:
                if is_full(error) and not maybe_stored:
                    raise self._backpressure.refused(request.key, error) from error
                if error.err_code == MESSAGE_TOO_LARGE:
                    raise TooLarge(len(request.payload), None) from error
            except NoRespondersError:
                if self._loop.time() - started > NOT_READY_AFTER and not maybe_stored:
                    with anyio.move_on_after(left):
                        await self._check_ready()
            except NotConnectedError as error:
                unsent = error
            except TransientError:
                maybe_stored = True
            else:
                self._backpressure.accepted(request.key)
                request.sequence = ack.sequence
                if not ack.duplicate or not request.inbox or request.is_copy:
                    return
                # Sent before, perhaps long decided: only a message of its own brings this inbox its answer.
                request.mark_as_copy()
                continue
            await anyio.sleep(pause)
            pause = min(pause * 2, RETRY_MAX)
        if unsent is not None and not maybe_stored:
            raise unsent
        raise TimeoutError

    async def _check_ready(self) -> None:
        """Raise `NotReadyError` if the streams are not there; they may just be without a leader for some seconds."""
        try:
            with translate_missing_stream():
                await self._js.stream_info(self._subjects.requests_stream)
        except NoRespondersError as error:
            raise NotReadyError from error
        except (ApiError, RequestTimeoutError):
            pass


def _formula_length(update: Update) -> int:
    """Characters of its formula, of which each has some; 0 if it is none."""
    return max(20, len(str(update.params.get("expr")))) if isinstance(update, Derive) and is_formula(update) else 0


@contextmanager
def translate_missing_stream() -> Iterator[None]:
    """A stream that is not there was never made: no server has run yet."""
    try:
        yield
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise NotReadyError from error
        raise
