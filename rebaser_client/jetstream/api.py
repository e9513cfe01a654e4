"""The JetStream API: publishes with their acks, reads from the leader, deletes, streams, consumers, acknowledgements.

Invariants: at most `MAX_CALLS` API calls of this process are in flight, because a server drops its whole queue at
10,000; publishes are no API calls and are not held up by them. Every read asks the stream's leader, never a replica.
"""

import asyncio
import binascii
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from pydantic_core import from_json

from rebaser_client.jetstream.connection import Connection
from rebaser_client.jetstream.ensure import ensure_consumer, ensure_stream
from rebaser_client.jetstream.errors import (
    CONSUMER_NOT_FOUND,
    DELETE_FAILED,
    NO_MESSAGE,
    SEQUENCE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    NoRespondersError,
    RequestTimeoutError,
)
from rebaser_client.jetstream.infos import AccountInfo, ConsumerInfo, PubAck, StreamInfo
from rebaser_client.jetstream.messages import STATUS, Message, Msg, StoredMessage, parse_headers
from rebaser_core.errors import TransientError

MAX_CALLS = 256
DELETE_GROUP = 64  # deletes behind one answer
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"

_calls: RunVar[asyncio.Semaphore] = RunVar("jetstream_calls")


class JetStream:
    """JetStream over `connection`. `timeout` (seconds) bounds every call that names no other.

    All methods raise `ApiError` for a refusal, `RequestTimeoutError`, `NoRespondersError` or `NotConnectedError`.
    """

    def __init__(self, connection: Connection, *, domain: str | None = None, timeout: float = 5.0) -> None:
        self.connection = connection
        self.prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        self._timeout = timeout
        self._created: dict[str, str] = {}

    # -- messages --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        expected_last_subject_sequence: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> PubAck:
        """Store a message, confirmed. After a timeout it may be stored, after an `ApiError` it is not."""
        if expected_last_subject_sequence is not None:
            headers = {**(headers or {}), EXPECTED_LAST: str(expected_last_subject_sequence)}
        message = await self.connection.request(subject, payload, headers, timeout=timeout or self._timeout)
        return _pub_ack(message)

    async def publish_all(self, subject: str, payloads: Iterable[bytes], *, window: int = 16) -> list[PubAck]:
        """Store messages in order, `window` of them unconfirmed at most. After a failure some are stored."""
        connection = self.connection
        acks: list[PubAck] = []
        waiting: deque[tuple[str, asyncio.Future[Msg]]] = deque()

        async def settle(room: int) -> None:
            while len(waiting) > room:
                acks.append(_pub_ack(await waiting[0][1]))
                connection.close_reply(waiting.popleft()[0])

        try:
            for payload in payloads:
                with anyio.fail_after(self._timeout):
                    await settle(window - 1)
                waiting.append(connection.open_reply())
                await connection.publish(subject, payload, reply=waiting[-1][0])
            with anyio.fail_after(self._timeout):
                await settle(0)
        except TimeoutError:
            raise RequestTimeoutError(f"no answer on {subject} within {self._timeout:g} s") from None
        finally:
            for inbox, _ in waiting:
                connection.close_reply(inbox)
        if any(one.sequence >= two.sequence for one, two in pairwise(acks)):
            raise TransientError(f"messages on {subject} were not stored in order", code="jetstream")
        return acks

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The newest message of `subject`."""
        return await self._get(stream, {"last_by_subj": subject})

    async def next(self, stream: str, subject: str, sequence: int) -> StoredMessage | None:
        """The first message of `subject` at or behind `sequence`."""
        return await self._get(stream, {"seq": max(sequence, 1), "next_by_subj": subject})

    async def get(self, stream: str, sequence: int) -> StoredMessage | None:
        """The message at `sequence`."""
        return await self._get(stream, {"seq": sequence})

    async def delete_message(self, stream: str, sequence: int) -> None:
        """Delete one message; one that is not there is deleted already."""
        # Without no_erase the server overwrites it first, which takes milliseconds.
        try:
            await self.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
        except ApiError as error:
            if not _deleted_already(error):
                raise

    async def delete_many(self, stream: str, sequences: Sequence[int]) -> None:
        """Have messages deleted, in groups that share one answer: that of the last.

        The server takes calls up in order but works on several at once, so some may still be under way for a moment,
        and one that failed is not noticed. Callers must not depend on any single one.
        """
        subject = f"{self.prefix}STREAM.MSG.DELETE.{stream}"
        for start in range(0, len(sequences), DELETE_GROUP):
            *silent, last = sequences[start : start + DELETE_GROUP]
            async with _limit():
                for sequence in silent:
                    await self.connection.publish(subject, b'{"seq":%d,"no_erase":true}' % sequence)
            await self.delete_message(stream, last)

    async def purge(
        self, stream: str, subject: str | None = None, *, sequence: int | None = None, keep: int | None = None
    ) -> int:
        """Delete what `subject` (all: None) has below `sequence`, or all but its newest `keep`; returns how many."""
        body = {"filter": subject, "seq": sequence, "keep": keep}
        given = {name: value for name, value in body.items() if value is not None}
        return int((await self.call(f"STREAM.PURGE.{stream}", given)).get("purged", 0))

    # -- streams and consumers -------------------------------------------------------------------------------------

    async def ensure_stream(self, config: Mapping[str, Any]) -> None:
        """Create the stream, or update what may be; raises `ConfigError` where it cannot be made as wanted."""
        await ensure_stream(self.call, config)

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any]) -> None:
        """Create the consumer, or update what may be; raises `ConfigError` where it cannot be made as wanted."""
        await ensure_consumer(self.call, stream, config)

    async def stream_info(self, stream: str) -> StreamInfo:
        info = StreamInfo.of(await self.call(f"STREAM.INFO.{stream}"))
        self._created[stream] = info.created
        return info

    async def stream_created(self, stream: str) -> str:
        """`StreamInfo.created` as somebody saw it last; asked for only if nobody did."""
        return self._created.get(stream) or (await self.stream_info(stream)).created

    async def subject_counts(self, stream: str, pattern: str) -> dict[str, int]:
        """Messages by subject, for the subjects that match `pattern`. The server answers in pages of 100,000."""
        counts: dict[str, int] = {}
        offset = 0
        while True:
            body = {"subjects_filter": pattern, "offset": offset}
            answer = await self.call(f"STREAM.INFO.{stream}", body)
            page = answer["state"].get("subjects") or {}
            counts.update(page)
            offset += len(page)
            if not page or offset >= answer.get("total", 0):
                return counts

    async def create_consumer(
        self,
        stream: str,
        config: Mapping[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> ConsumerInfo:
        """Create a consumer that has a `name` and one `filter_subject`."""
        subject = f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
        body = {"stream_name": stream, "config": config, "action": "create"}
        return ConsumerInfo.of(await self.call(subject, body, timeout=timeout))

    async def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        return ConsumerInfo.of(await self.call(f"CONSUMER.INFO.{stream}.{consumer}"))

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer; one that is not there is deleted already."""
        try:
            await self.call(f"CONSUMER.DELETE.{stream}.{consumer}")
        except ApiError as error:
            if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise

    async def unpin(self, stream: str, consumer: str, group: str) -> None:
        """Take the pin from the pinned client of `group`; whoever pulls next without one gets it."""
        await self.call(f"CONSUMER.UNPIN.{stream}.{consumer}", {"group": group})

    async def account_info(self) -> AccountInfo:
        return AccountInfo.of(await self.call("INFO"))

    # -- acknowledgements ------------------------------------------------------------------------------------------

    async def ack(self, message: Message) -> None:
        """Done. Nobody confirms it."""
        await self.connection.publish(message.reply, b"+ACK")

    async def ack_sync(self, message: Message, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Done, confirmed: the server will not deliver it again."""
        await self.connection.request(message.reply, b"+ACK", timeout=timeout or self._timeout)

    async def nak(self, message: Message, delay: float = 0.0) -> None:
        """Have it delivered again, to anybody, after `delay` seconds."""
        body = b'-NAK {"delay":%d}' % int(delay * 1e9) if delay > 0 else b"-NAK"
        await self.connection.publish(message.reply, body)

    async def progress(self, message: Message) -> None:
        """Still at work: begin the ack wait anew."""
        await self.connection.publish(message.reply, b"+WPI")

    async def term(self, message: Message, reason: str = "") -> None:
        """Never deliver it again."""
        await self.connection.publish(message.reply, f"+TERM {reason}".strip().encode())

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(
        self,
        subject: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> dict[str, Any]:
        """One API call; `subject` without the API's prefix."""
        payload = b"" if body is None else json.dumps(body).encode()
        async with _limit():
            message = await self.connection.request(self.prefix + subject, payload, timeout=timeout or self._timeout)
        return _answer(message)

    async def _get(self, stream: str, body: Mapping[str, Any]) -> StoredMessage | None:
        try:
            stored = (await self.call(f"STREAM.MSG.GET.{stream}", body))["message"]
        except ApiError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        headers = parse_headers(binascii.a2b_base64(stored["hdrs"])) if "hdrs" in stored else {}
        data = binascii.a2b_base64(stored.get("data", ""))
        return StoredMessage(stored["subject"], stored["seq"], headers, data, stored.get("time", ""))


def _limit() -> asyncio.Semaphore:
    try:
        return _calls.get()
    except LookupError:
        limit = asyncio.Semaphore(MAX_CALLS)
        _calls.set(limit)
        return limit


def _answer(message: Msg) -> dict[str, Any]:
    try:
        answer = from_json(message.data)  # as json.loads, at a fifth of the cost: one stands in each publish
    except ValueError:
        answer = None
    if type(answer) is not dict:
        raise TransientError(f"the answer on {message.subject} is not JetStream's", code="jetstream")
    error = answer.get("error")
    if error:
        raise ApiError(error.get("code", 0), error.get("err_code", 0), str(error.get("description", "")))
    return answer


def _pub_ack(message: Msg) -> PubAck:
    if message.headers.get(STATUS) == "503":
        raise NoRespondersError("no stream stores messages of this subject")
    answer = _answer(message)
    sequence = answer.get("seq")
    if type(sequence) is not int:
        raise TransientError("what answered a publish is no stream", code="jetstream")
    return PubAck(sequence, "duplicate" in answer)


def _deleted_already(error: ApiError) -> bool:
    if error.err_code == DELETE_FAILED:
        return error.description.endswith(("EOF", "found"))
    return error.err_code in (SEQUENCE_NOT_FOUND, NO_MESSAGE)
