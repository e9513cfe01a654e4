"""The buffer of an ordered consumer for a slow reader, bounded in messages and in bytes."""

from collections import deque

from rebaser_client.jetstream.messages import Message

_EMPTY: deque[Message] = deque(maxlen=0)


class MessageBuffer:
    """A bounded queue of messages, oldest first.

    An empty buffer accepts a message of any size. Otherwise, a large message could never be delivered. An empty buffer
    has no queue, because a server has thousands of buffers, nearly all of them empty.
    """

    __slots__ = ("_bytes", "_max_bytes", "_max_count", "_messages")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._messages = _EMPTY
        self._bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._messages)

    def fits(self, message: Message) -> bool:
        """Return whether `message` may be added."""
        count = len(self._messages)
        return not count or (count < self._max_count and self._bytes + len(message.data) <= self._max_bytes)

    def half_empty(self) -> bool:
        """Return whether the buffer is at most half full, both in messages and in bytes."""
        return len(self._messages) * 2 <= self._max_count and self._bytes * 2 <= self._max_bytes

    def add(self, message: Message) -> None:
        if self._messages:
            self._messages.append(message)
        else:
            self._messages = deque((message,))
        self._bytes += len(message.data)

    def pop(self) -> Message:
        """Remove and return the oldest message."""
        message = self._messages.popleft()
        if not self._messages:
            self._messages = _EMPTY
        self._bytes -= len(message.data)
        return message

    def take(self, max_count: int, max_bytes: int) -> list[Message]:
        """Remove and return the oldest messages within both bounds. Return at least one unless the buffer is empty."""
        taken: list[Message] = []
        room = max_bytes
        while self._messages and len(taken) < max_count:
            size = len(self._messages[0].data)
            if taken and size > room:
                break
            room -= size
            taken.append(self.pop())
        return taken
