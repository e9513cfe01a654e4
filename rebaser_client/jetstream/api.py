"""The JetStream API calls that need only names: they read and delete messages, and describe and delete streams and
consumers.

Invariant: every read is answered by the stream's leader, never by a replica.
"""

import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rebaser_client.jetstream.api_calls import ApiCalls, call_slot
from rebaser_client.jetstream.ensure import consumer_request
from rebaser_client.jetstream.errors import (
    CONSUMER_NOT_FOUND,
    DELETE_FAILED,
    NO_MESSAGE,
    SEQUENCE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
)
from rebaser_client.jetstream.infos import ConsumerInfo, StreamInfo
from rebaser_client.jetstream.messages import StoredMessage
from rebaser_client.jetstream.names import subject_tokens
from rebaser_client.jetstream.priority_groups import check_name, check_update
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.messages import parse_headers

DELETE_GROUP = 64  # messages that are deleted by one group of calls; only the last call is answered


class JetStreamApi(ApiCalls):
    """The API calls that need only names and return plain data. `JetStream` adds the calls that return objects.

    `Stream` and `Consumer` use this class. They cannot import `JetStream`, because `JetStream` imports them.
    """

    def __init__(self, connection: Connection, *, domain: str | None = None, timeout: float = 5.0) -> None:
        super().__init__(connection, domain=domain, timeout=timeout)
        self._created: dict[str, str] = {}

    # -- messages ----------------------------------------------------------------------------------------------------

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of `subject`; None if there is no message."""
        return await self._get(stream, {"last_by_subj": subject})

    async def next(self, stream: str, subject: str, sequence: int) -> StoredMessage | None:
        """Return the first message of `subject` at or after `sequence`; None if there is no such message."""
        return await self._get(stream, {"seq": max(sequence, 1), "next_by_subj": subject})

    async def next_since(self, stream: str, subject: str, time: datetime) -> StoredMessage | None:
        """Return the first message of `subject` that was stored at or after `time`; None if there is no such message.

        `time` must have a time zone.
        """
        since = time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return await self._get(stream, {"start_time": since, "next_by_subj": subject})

    async def get(self, stream: str, sequence: int) -> StoredMessage | None:
        """Return the message at `sequence`; None if it does not exist."""
        return await self._get(stream, {"seq": sequence})

    async def delete_message(self, stream: str, sequence: int, *, erase: bool = False) -> None:
        """Delete one message. A message that does not exist counts as deleted.

        If `erase` is true, the server overwrites the message on disk first, which takes milliseconds.
        """
        try:
            await self.call(f"STREAM.MSG.DELETE.{subject_tokens(stream)}", {"seq": sequence, "no_erase": not erase})
        except ApiError as error:
            if not _deleted_already(error):
                raise

    async def delete_many(self, stream: str, sequences: Sequence[int]) -> None:
        """Delete messages in groups of `DELETE_GROUP`. Only the last call of a group has an answer.

        The server works on several calls at once, so some messages may be deleted after this method returns, and a
        failure to delete a message may go unnoticed. Callers must not rely on the deletion of any single message.
        """
        subject = f"{self.prefix}STREAM.MSG.DELETE.{subject_tokens(stream)}"
        for start in range(0, len(sequences), DELETE_GROUP):
            *silent, last = sequences[start : start + DELETE_GROUP]
            async with call_slot():
                if silent and not self.connection.publish_all(
                    [(subject, b'{"seq":%d,"no_erase":true}' % sequence) for sequence in silent]
                ):
                    await self.connection.flush()
            await self.delete_message(stream, last)

    async def purge(
        self, stream: str, subject: str | None = None, *, sequence: int | None = None, keep: int | None = None
    ) -> int:
        """Delete messages of `subject` (None: all subjects), and return their number.

        If `sequence` is given, only messages with a lower sequence are deleted. If `keep` is given, that many of the
        newest messages are kept.
        """
        body = {"filter": subject, "seq": sequence, "keep": keep}
        fields = {name: value for name, value in body.items() if value is not None}
        return int((await self.call(f"STREAM.PURGE.{subject_tokens(stream)}", fields)).get("purged", 0))

    # -- streams -----------------------------------------------------------------------------------------------------

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all of its messages and consumers. A stream that does not exist counts as deleted."""
        try:
            await self.call(f"STREAM.DELETE.{subject_tokens(name)}")
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise

    async def stream_info(self, stream: str) -> StreamInfo:
        info = StreamInfo.of(await self.call(f"STREAM.INFO.{subject_tokens(stream)}"))
        self._created[stream] = info.created
        return info

    async def stream_created(self, stream: str) -> str:
        """Return the creation time of the stream (`StreamInfo.created`), as the server last reported it.

        The server is asked only if it has not reported the time yet.
        """
        return self._created.get(stream) or (await self.stream_info(stream)).created

    async def subject_counts(self, stream: str, pattern: str) -> dict[str, int]:
        """Return the number of messages of each subject that matches `pattern`. Each call covers 100,000 subjects."""
        counts: dict[str, int] = {}
        offset = 0
        while True:
            body = {"subjects_filter": pattern, "offset": offset}
            answer = await self.call(f"STREAM.INFO.{subject_tokens(stream)}", body)
            page = answer["state"].get("subjects") or {}
            counts.update(page)
            offset += len(page)
            if not page or offset >= answer.get("total", 0):
                return counts

    # -- consumers ---------------------------------------------------------------------------------------------------

    async def list_consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        """Yield all consumers of a stream. The server is called once for each page of the list."""
        async for info in self.pages(f"CONSUMER.LIST.{subject_tokens(stream)}", "consumers"):
            yield ConsumerInfo.of(info)

    async def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        return ConsumerInfo.of(await self.call(f"CONSUMER.INFO.{subject_tokens(stream, consumer)}"))

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer. A consumer that does not exist counts as deleted."""
        try:
            await self.call(f"CONSUMER.DELETE.{subject_tokens(stream, consumer)}")
        except ApiError as error:
            if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise

    async def unpin(self, stream: str, consumer: str, group: str) -> None:
        """Unpin the pinned client of `group`. The next client that pulls without a pin is pinned."""
        check_name(group)
        await self.call(f"CONSUMER.UNPIN.{subject_tokens(stream, consumer)}", {"group": group})

    async def put_consumer(
        self,
        stream: str,
        config: Mapping[str, Any],
        action: str,
        *,
        pedantic: bool,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> ConsumerInfo:
        """Create or update a consumer. The methods of `JetStream` document the arguments, and `consumer_request`
        documents `action`."""
        name = config.get("name") or config.get("durable_name") or self.connection.new_name()
        subject, body = consumer_request(stream, {**config, "name": name}, action, pedantic=pedantic)
        if action != "create":
            try:
                check_update((await self.consumer_info(stream, name)).config, config)
            except ApiError as error:
                if error.err_code != CONSUMER_NOT_FOUND:
                    raise
        return ConsumerInfo.of(await self.call(subject, body, timeout=timeout))

    async def _get(self, stream: str, body: Mapping[str, Any]) -> StoredMessage | None:
        try:
            stored = (await self.call(f"STREAM.MSG.GET.{subject_tokens(stream)}", body))["message"]
        except ApiError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        headers = parse_headers(binascii.a2b_base64(stored["hdrs"])) if "hdrs" in stored else {}
        data = binascii.a2b_base64(stored.get("data", ""))
        return StoredMessage(stored["subject"], stored["seq"], headers, data, stored.get("time", ""))


def _deleted_already(error: ApiError) -> bool:
    if error.err_code == DELETE_FAILED:
        return error.description.endswith(("EOF", "found"))
    return error.err_code in (SEQUENCE_NOT_FOUND, NO_MESSAGE)
