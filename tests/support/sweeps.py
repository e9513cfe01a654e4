"""A sweeper, and a function that returns the tasks it has published."""

from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.sweeper.old_history import OldHistory
from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UnroutableMessages
from rebaser_client.admin.status import key_counts
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.commits import CommitReader
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects


def new_sweeper(js: JetStream, subjects: Subjects, interval: float = 0.5) -> Sweeper:
    blobs = open_blobs(None, js, subjects.blobs_bucket)
    letters = DeadLetterPublisher(js, subjects, blobs, "test")
    unroutable = UnroutableMessages(js, subjects, letters, lambda: 1)
    history = OldHistory(js, subjects, CommitReader(js, subjects, blobs), 86_400.0)
    return Sweeper(js, subjects, interval, unroutable, history)


async def tasks(js: JetStream, subjects: Subjects) -> set[ChangeSetKey]:
    return set(await key_counts(js, subjects, subjects.tasks_stream, "tasks"))


async def drop_tasks(js: JetStream, subjects: Subjects) -> None:
    await js.purge(subjects.tasks_stream, f"{subjects.root}.tasks.*.*.process")
