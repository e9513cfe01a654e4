"""A stream as an object (ADR-37): its description, its messages, and its consumers."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from rebaser_client.jetstream.api import JetStreamApi
from rebaser_client.jetstream.infos import ConsumerInfo, StreamInfo
from rebaser_client.jetstream.messages import StoredMessage
from rebaser_client.jetstream.pull.consumer import Consumer
from rebaser_core.errors import ConfigError


class Stream:
    """A stream that `JetStream` returned. The methods of `JetStream` with the same names have the full documentation.

    `cached_info` is the result of the last call of `info`.
    """

    def __init__(self, js: JetStreamApi, info: StreamInfo) -> None:
        self._js = js
        self.name = info.name
        self.cached_info = info

    async def info(self) -> StreamInfo:
        """Return the configuration and the current state of the stream, as the server reports them."""
        self.cached_info = await self._js.stream_info(self.name)
        return self.cached_info

    async def delete(self) -> None:
        await self._js.delete_stream(self.name)

    async def purge(self, subject: str | None = None, *, sequence: int | None = None, keep: int | None = None) -> int:
        """Delete messages of `subject` (None: all subjects), and return their number.

        If `sequence` is given, only messages with a lower sequence are deleted. If `keep` is given, that many of the
        newest messages are kept.
        """
        return await self._js.purge(self.name, subject, sequence=sequence, keep=keep)

    # -- messages --------------------------------------------------------------------------------------------------

    async def get_message(
        self, sequence: int | None = None, *, next_of: str | None = None, last_of: str | None = None
    ) -> StoredMessage | None:
        """Return a message, or None if it does not exist. The arguments select the message:

        - only `sequence`: the message at that sequence.
        - `next_of`: the first message of that subject at or after `sequence` (default 1).
        - only `last_of`: the newest message of that subject.

        Raise `ConfigError` for any other combination of arguments.
        """
        if last_of is not None and sequence is None and next_of is None:
            return await self._js.last(self.name, last_of)
        if next_of is not None and last_of is None:
            return await self._js.next(self.name, next_of, sequence or 1)
        if sequence is None or sequence < 1 or last_of is not None:
            raise ConfigError(
                "give only `sequence` (1 or more), `next_of` with or without `sequence`, or only `last_of`"
            )
        return await self._js.get(self.name, sequence)

    async def delete_message(self, sequence: int, *, erase: bool = False) -> None:
        """Delete one message. A message that does not exist counts as deleted."""
        await self._js.delete_message(self.name, sequence, erase=erase)

    # -- consumers -------------------------------------------------------------------------------------------------

    async def get_consumer(self, name: str) -> Consumer:
        return Consumer(self._js, await self._js.consumer_info(self.name, name))

    async def create_consumer(self, config: Mapping[str, Any], *, pedantic: bool = False) -> Consumer:
        return Consumer(self._js, await self._js.put_consumer(self.name, config, "create", pedantic=pedantic))

    async def update_consumer(self, config: Mapping[str, Any], *, pedantic: bool = False) -> Consumer:
        return Consumer(self._js, await self._js.put_consumer(self.name, config, "update", pedantic=pedantic))

    async def create_or_update_consumer(self, config: Mapping[str, Any], *, pedantic: bool = False) -> Consumer:
        return Consumer(self._js, await self._js.put_consumer(self.name, config, "", pedantic=pedantic))

    async def delete_consumer(self, name: str) -> None:
        await self._js.delete_consumer(self.name, name)

    def list_consumers(self) -> AsyncIterator[ConsumerInfo]:
        return self._js.list_consumers(self.name)
