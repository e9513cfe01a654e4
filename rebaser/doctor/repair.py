"""Repairs a damaged log by appending one commit that refers to a checkpoint of everything that can still be read.

Invariant: all parts of the checkpoint are stored before the commit is appended. The commit is refused if the log has
changed since the examination. Nothing else is changed, and nothing is deleted.
"""

import os
import time

from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.doctor.examination import Examination, Stores
from rebaser_client.log.reader import LoadedState, StateLoader
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.ids import ulid

FOREVER = 1e12  # seconds; with this retry window, a repair keeps all recorded outcomes


async def repair(stores: Stores, examination: Examination, owner: str, *, history: bool = True) -> int:
    """Append the repair commit and return its log sequence. For `history`, see `CommitLog`.

    Raise `FencedError` if another writer has appended to the log since it was examined; nothing has changed then.
    """
    key = examination.key
    commits = CommitLog(
        stores.js,
        stores.subjects,
        key,
        LoadedState(examination.state),
        blobs=stores.blobs,
        owner=owner,
        inline_max=stores.js.connection.max_payload // 2,
        retry_window=FOREVER,
        history=history or examination.state.branch is not None,
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_id=lambda: ulid(time.time_ns() // 1_000_000, os.urandom(10)),
    )
    await checkpointer.store(stores.blobs, commits)
    await publish_task(stores.js, stores.subjects, key)
    # Load the repaired log like any reader, so that a failure appears here rather than in the next owner.
    await StateLoader(stores.js, stores.subjects, stores.blobs).load(key)
    return commits.state.last
