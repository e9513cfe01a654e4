"""Owners of one branch on a real NATS server, which a test runs step by step."""

from dataclasses import replace

from rebaser.change_set.attempts.poison import PoisonDetector
from rebaser.change_set.branch_puller import BranchPuller
from rebaser.change_set.loading import open_log
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.processor import Processor
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client import Update
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_core.branches.branch import Rebase
from rebaser_core.commit import Applied, Kind, Marking
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of
from tests.support.owners import Engine

KEY = ChangeSetKey("ws", "fix")
MAX_DEATHS = 2


class OwnersOfBranch:
    """Owners of the branch `fix`. `now` is their clock in seconds; `now_ms` is added to the time of day."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.now, self.now_ms = 1000.0, 0
        context = context_of(js, subjects, Settings(server_id="test", max_deaths=MAX_DEATHS), Engine())
        time_of_day = context.now_ms
        self.context: Context = replace(context, now=lambda: self.now, now_ms=lambda: time_of_day() + self.now_ms)

    async def edit_target(self, *updates: Update) -> int:
        commits = await open_log(self.context, ChangeSetKey("ws", "main"))
        async with commits.append_lock():
            before = await commits.before(updates)
            return await commits.append(commits.draft(Kind.REBASE, delta=updates, before=before))

    async def owner(
        self, *, redelivered: bool = False, hung: bool = False, suspects: bool = False
    ) -> tuple[CommitLog, Processor, BranchPuller]:
        """Return an owner. With `suspects`, each queued request may have killed an earlier owner."""
        commits = await open_log(self.context, KEY)
        applied = commits.state.applied
        assert applied is not None
        until = 2**63 if suspects else 0
        detector = PoisonDetector(self.context, commits, redelivered=suspects, after=0, until=until, hung=lambda: False)
        processor = Processor(self.context, commits, Applied(applied.stream, applied.sequence), detector)
        return (
            commits,
            processor,
            BranchPuller(self.context, commits, processor, redelivered=redelivered, hung=lambda: False),
        )

    async def queued(self) -> list[Message]:
        """Return the requests in the queue of the branch."""
        subjects = self.context.subjects
        async with OrderedConsumer(self.context.js, subjects.requests_stream, subjects.requests(KEY)) as consumer:
            await consumer.wait()
            return list(consumer.take(100, 10**9))

    async def ask(self, action: Rebase | Marking) -> Message:
        """Send a request, and return it as the queue of the branch has it. No owner decides it."""
        headers, payload = encode(
            EnqueueUpdatesRequest(RequestId(f"asked-{self.context.new_id()}"), "ws", "fix", None, action=action)
        )
        await self.context.js.publish(self.context.subjects.requests(KEY), payload, headers)
        return (await self.queued())[-1]
