"""Owners of one change set, one after the other, each of which may die of a request."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from rebaser.change_set.attempts.poison import PoisonDetector
from rebaser.change_set.loading import open_log
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.processor import Processor
from rebaser.settings import Settings
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_core.commit import Applied, Kind
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set
from tests.support.contexts import context_of

KEY = ChangeSetKey("ws", "cs")


class Fleet:
    """Owners of one change set, one after the other, without a task or a life cycle. `now_ms` is their clock."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.js = js
        self.subjects = subjects
        settings = Settings(server_id="test", max_deaths=2, batch_max_requests=3, retry_for=30)
        self.now_ms = 1_000
        self.context = replace(context_of(js, subjects, settings), now_ms=lambda: self.now_ms)

    async def send(self, *ids: str, **headers: str) -> None:
        for id_ in ids:
            given, payload = encode(
                EnqueueUpdatesRequest(RequestId(id_), KEY.workspace, KEY.change_set, (Set(id_, 1),))
            )
            given |= {"Nats-Msg-Id": f"{KEY}.{id_}"} | {name.replace("_", "-"): text for name, text in headers.items()}
            await self.js.publish(self.subjects.requests(KEY), payload, given)

    @asynccontextmanager
    async def owner(self, *, redelivered: bool, hung: bool = False) -> AsyncIterator["Owner"]:
        """Start the next owner, with the requests that are queued."""
        commits = await open_log(self.context, KEY)
        stream = await self.js.stream_info(self.subjects.requests_stream)
        after = commits.state.applied.sequence if commits.state.applied else 0
        until = stream.last_sequence
        detector = PoisonDetector(
            self.context, commits, redelivered=redelivered, after=after, until=until, hung=lambda: hung
        )
        subject = self.subjects.requests(KEY)
        queued: list[Message] = []
        if until > after:
            start = max(after + 1, 1)
            async with OrderedConsumer(self.js, self.subjects.requests_stream, subject, start=start) as consumer:
                while not queued or queued[-1].stream_sequence < until:
                    await consumer.wait()
                    queued += consumer.take(100)
        yield Owner(Processor(self.context, commits, Applied(stream.created, after), detector), commits, queued)

    async def log(self) -> list[tuple[Kind, list[str]]]:
        """Return the kinds of all commits, with the ids of the requests that each decided."""
        found = []
        stored = await self.js.next(self.subjects.commits_stream, self.subjects.commits(KEY), 1)
        while stored is not None:
            commit = self.context.reader.decode(stored.sequence, stored.headers, stored.data)
            assert commit is not None
            found.append((commit.kind, [one.request_id for one in commit.requests]))
            sequence = stored.sequence + 1
            stored = await self.js.next(self.subjects.commits_stream, self.subjects.commits(KEY), sequence)
        return found  # type: ignore[return-value]


class Owner:
    def __init__(self, processor: Processor, commits: CommitLog, queued: Sequence[Message]) -> None:
        self.processor = processor
        self.commits = commits
        self.queued = queued

    @property
    def deaths(self) -> dict[int, int]:
        """Return the number of recorded deaths by request sequence."""
        return {attempt.sequence: attempt.deaths for attempt in self.commits.state.attempts.values()}

    async def decide_all(self) -> list[str]:
        """Decide all queued requests, and return the codes of those that are dead."""
        codes = []
        while self.queued:
            done = await self.processor.process(self.queued)
            codes += [one.decision.code for one in done.dead]
            self.queued = done.rest
        return codes
