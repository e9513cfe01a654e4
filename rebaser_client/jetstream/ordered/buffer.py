"""The buffer of an ordered consumer for a slow reader, bounded in messages and in bytes."""

from collections import deque

from rebaser_client.jetstream.messages import Message

_EMPTY: list[Message] = []


class MessageBuffer:
    """A bounded queue of messages, oldest first.

    An empty buffer accepts a message of any size. Otherwise, a large message could never be delivered. An empty buffer
    has no queue, because a server has thousands of buffers, nearly all of them empty. A single message is in a list,
    because it is nearly always taken alone, and making a deque takes ten times as long.
    """

    __slots__ = ("_bytes", "_max_bytes", "_max_count", "messages")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.messages: list[Message] | deque[Message] = _EMPTY  # callers must not change it
        self._bytes = 0
        self._max_count = max_count
        self._max_bytes = max_bytes

    def fits(self, message: Message) -> bool:
        """Return whether `message` may be added."""
        count = len(self.messages)
        return not count or (count < self._max_count and self._bytes + len(message.data) <= self._max_bytes)

    def half_empty(self) -> bool:
        """Return whether the buffer is at most half full, both in messages and in bytes."""
        return len(self.messages) * 2 <= self._max_count and self._bytes * 2 <= self._max_bytes

    def add(self, message: Message) -> None:
        messages = self.messages
        if not messages:
            self.messages = [message]
        elif isinstance(messages, deque):
            messages.append(message)
        else:
            self.messages = deque((*messages, message))
        self._bytes += len(message.data)

    def pop(self) -> Message:
        """Remove and return the oldest message."""
        messages = self.messages
        if isinstance(messages, deque) and len(messages) > 1:
            message = messages.popleft()
        else:
            message, self.messages = messages[0], _EMPTY
        self._bytes -= len(message.data)
        return message

    def take(self, max_count: int, max_bytes: int) -> list[Message]:
        """Remove and return the oldest messages within both bounds. Return at least one unless the buffer is empty."""
        if len(self.messages) <= max_count and self._bytes <= max_bytes:
            taken = list(self.messages)
            self.messages, self._bytes = _EMPTY, 0
            return taken
        taken, room = [], max_bytes
        while self.messages and len(taken) < max_count:
            size = len(self.messages[0].data)
            if taken and size > room:
                break
            room -= size
            taken.append(self.pop())
        return taken
