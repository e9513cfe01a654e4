"""Deletes and restores change sets: reads and stores the state that replaces the current state.

The commit that deletes a change set refers to a checkpoint without values. The commit that restores the change set
refers to a checkpoint of the state before the deletion. To load the change set, a reader needs nothing older than the
last of these checkpoints, so the log before that checkpoint may be purged at any time.

Invariant: the outcomes of decided requests are in both checkpoints. No request is decided a second time because its
change set was deleted or restored.
"""

from typing import Any

from rebaser.change_set.log.checkpointer import ROW, put_all
from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import run_offloaded
from rebaser_client.log.reader import StateLoader
from rebaser_core.checkpoint.chain import Chain
from rebaser_core.checkpoint.writer import CheckpointDraft
from rebaser_core.decisions.queued_request import Restored
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState


async def read_deleted(reader: StateLoader, key: ChangeSetKey) -> Restored:
    """Return the state that the change set `key` had before it was deleted.

    Raise `UnprocessableError` (`purged`) if that state is no longer readable, and `TransientError` if the log or a
    blob cannot be read.
    """
    async for commit in reader.back(key):
        if commit.marking is not None and commit.marking.deletes:
            loaded = await reader.load(key, commit.previous)
            return Restored(loaded.state, loaded.chain)
    raise UnprocessableError(
        f"{key.workspace}/{key.change_set} cannot be restored: the commit that deleted it is no longer in the log",
        code="purged",
    )


async def store_emptied(blobs: BlobStore, state: ChangeSetState) -> tuple[ChangeSetState, dict[str, Any]]:
    """Store a checkpoint of the part of `state` that remains when the change set is deleted.

    Return the remaining state, and the fields of the commit that refers to the checkpoint. Raise `TransientError` if a
    blob cannot be stored.
    """
    emptied = state.emptied()
    return emptied, await _store(blobs, emptied, Chain())


async def store_restored(
    blobs: BlobStore, restored: Restored, deleted: ChangeSetState
) -> tuple[ChangeSetState, dict[str, Any]]:
    """Turn `restored` into the state that continues the log and the queue of `deleted`, and store its checkpoint.

    The results and errors are the same as those of `store_emptied`. If the caller cannot append the commit that refers
    to the checkpoint, it has to read the state again, because this function has changed `restored`.
    """
    restored.state.restore(deleted)
    return restored.state, await _store(blobs, restored.state, restored.chain)


async def _store(blobs: BlobStore, state: ChangeSetState, chain: Chain) -> dict[str, Any]:
    with state.view() as view:
        draft = CheckpointDraft(state, view, chain)
        await run_offloaded(draft.rows * ROW, view.run, draft.copy)
    reference, needed = await put_all(blobs, await run_offloaded(draft.encoded_rows * ROW, draft.write))
    return {"checkpoint": reference, "blobs": needed + state.results()}
