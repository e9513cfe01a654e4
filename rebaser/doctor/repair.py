"""Makes a damaged log readable: one commit at its end, with a checkpoint of what is left.

Invariant: all parts of the checkpoint are stored before the commit names it, and the commit is refused if the log is no
longer the one that was examined. Until then nothing has changed, and nothing is deleted afterwards either.
"""

import os
import time

from rebaser.change_set import checkpointer
from rebaser.change_set.commit_log import CommitLog
from rebaser.doctor.examination import Examination, Stores
from rebaser_client.log.reader import LogReader, Tail
from rebaser_client.requests.tasks import publish_task
from rebaser_core.ids import ulid

FOR_EVER = 1e12  # seconds: no outcome is forgotten here, whatever the servers' setting is


async def repair(stores: Stores, examination: Examination, owner: str) -> int:
    """Append the repair; returns its log sequence. Raises `FencedError` if the log moved, with nothing changed."""
    key = examination.key
    commits = CommitLog(
        stores.js,
        stores.subjects,
        key,
        Tail(examination.state),
        blobs=stores.blobs,
        owner=owner,
        inline_max=stores.js.connection.max_payload // 2,
        retry_window=FOR_EVER,
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_id=lambda: ulid(time.time_ns() // 1_000_000, os.urandom(10)),
    )
    await checkpointer.store(stores.blobs, commits)
    await publish_task(stores.js, stores.subjects, key)
    await LogReader(stores.js, stores.subjects, stores.blobs).load(key)
    return commits.state.last
