"""A stream of logs in memory, of which a sweeper reads the headers."""

import random
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from rebaser.sweeper import debts
from rebaser_client.nats.header_lines import encode_headers


@dataclass
class Header:
    """A message of a log, as the consumer delivers it."""

    subject: str
    stream_sequence: int
    timestamp_ns: int
    headers: dict[str, str]


@dataclass
class Stream:
    """The stream of all logs. `starts` are the starts of all consumers that have read it."""

    created: str = "0"
    last: int = 0
    messages: list[Header] = field(default_factory=list)
    starts: list[int | str] = field(default_factory=list)

    async def stream_info(self, _: str) -> Any:
        return SimpleNamespace(created=self.created, last_sequence=self.last, messages=len(self.messages))

    async def next(self, _: str, __: str, sequence: int) -> Header | None:
        return next((one for one in self.messages if one.stream_sequence >= sequence), None)

    def newest(self) -> dict[str, Header]:
        return {one.subject.removeprefix("rebaser.commits."): one for one in self.messages}


class Consumer:
    """Delivers headers in bursts. Like the real consumer, it asks whether a header is needless only if the queue is
    empty and more headers follow."""

    def __init__(self, rng: random.Random, stream: Stream, *_: object, start: int | str, **options: Any) -> None:
        chosen = stream.messages
        if start == "last_per_subject":
            chosen = sorted(stream.newest().values(), key=lambda one: one.stream_sequence)
        else:
            chosen = [one for one in chosen if one.stream_sequence >= cast("int", start)]
        stream.starts.append(start)
        self._rng = rng
        self._is_needless = options["is_needless"]
        self._arriving, self._queue = chosen, list[Header]()
        self.delivered = 0

    @property
    def pending(self) -> int:
        return len(self._queue)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def wait(self) -> None:
        for _ in range(self._rng.randint(1, 6)):
            if self._arriving:
                one, self._arriving = self._arriving[0], self._arriving[1:]
                self.delivered = one.stream_sequence
                raw = encode_headers(one.headers)
                if self._queue or not self._arriving or not self._is_needless(one.subject, raw):
                    self._queue.append(one)

    def take(self, count: int) -> list[Header]:
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken


def use_consumers(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Let trackers read through a `Consumer` that draws from `rng`."""
    monkeypatch.setattr(debts, "OrderedConsumer", partial(Consumer, rng))
