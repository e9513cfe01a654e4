"""Tests where the reader of references rests, on a log without a server."""

from types import SimpleNamespace
from typing import Any, Self

import pytest

from rebaser_client.garbage import ReferenceReader, references
from rebaser_client.jetstream import Message
from rebaser_client.pace import TURN, Pace
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

OLD, ADDED = 5, 7  # messages in the log at the beginning, and those added while the first are read


class Log:
    """A stream of requests, which grows by `ADDED` messages when the first ones are read. The other stream is empty."""

    pending = False

    def __init__(self) -> None:
        self.batches = [(1, OLD), (OLD + 1, OLD + ADDED)]
        self.read: list[int] = []

    async def next(self, stream: str, _: str, first: int) -> Any:
        return SimpleNamespace(sequence=first) if "REQUESTS" in stream and self.batches else None

    def opened(self, *_: object, **__: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def wait(self) -> None: ...

    def take(self, _: int) -> list[Message]:
        first, last = self.batches.pop(0)
        numbers = range(first, last + 1)
        self.read += numbers
        replies = [f"$JS.ACK.requests.c.1.{number}.{number}.1700000000000000000.{last - number}" for number in numbers]
        return [Message("requests.ws.cs", reply, b"", {}) for reply in replies]


async def test_the_reader_rests_until_the_end_that_it_saw_first(monkeypatch: pytest.MonkeyPatch) -> None:
    log, rests, now = Log(), [], 0.0

    def clock() -> float:
        nonlocal now
        now += TURN
        return now

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(references, "OrderedConsumer", log.opened)
    given: Any = log
    await ReferenceReader(given, Subjects("r"), given, pace=Pace(clock, sleep)).queued()
    assert log.read == list(range(1, OLD + ADDED + 1)), "what was added is read, too"
    assert len(rests) == OLD
