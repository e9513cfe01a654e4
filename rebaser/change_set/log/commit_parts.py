"""Moves the parts of a commit that are too large for its message into blobs.

Invariant: each stored blob decodes to the part that was moved. The commit object also keeps that part, so that the
commit can be folded.
"""

from dataclasses import replace

import structlog
from anyio import to_thread

from rebaser_client.blobs import BlobStore
from rebaser_core.commit import BlobRef, Commit, Kind, Replay
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnprocessableError
from rebaser_core.messages import check_delta, decode_replay, encode_delta, encode_replay
from rebaser_core.updates import Update

log = structlog.get_logger(__name__)

MAX_BEFORE = 64 * 1024 * 1024  # maximum bytes of replaced definitions; a small request can remove many large values


async def with_delta_in_blob(blobs: BlobStore, commit: Commit) -> Commit:
    if commit.delta_blob is not None or not commit.delta:
        return commit
    data = await to_thread.run_sync(_encode_delta, commit)
    return replace(commit, delta_blob=BlobRef(await blobs.put(data), len(data)))


async def with_before_in_blob(blobs: BlobStore, commit: Commit) -> Commit:
    """Return `commit` with the replaced definitions in a blob, or without them if they are too large."""
    if commit.before_blob is not None or not commit.before:
        return commit
    try:
        data = await to_thread.run_sync(_encode_before, commit.before)
    except UnprocessableError as error:
        if error.code != "too_large":
            raise
        log.warning("history_too_large", commit=commit.id, ids=len(commit.before))
        return replace(commit, before=None)
    return replace(commit, before_blob=BlobRef(await blobs.put(data), len(data)))


async def with_replay_in_blob(blobs: BlobStore, commit: Commit) -> Commit:
    """Return `commit` with the bases and conflicts of its replay in a blob."""
    replay = commit.replay
    if replay is None or replay.blob is not None or not replay.bases:
        return commit
    data = await to_thread.run_sync(_encode_replay, replay)
    return replace(commit, replay=replace(replay, blob=BlobRef(await blobs.put(data), len(data))))


def _encode_delta(commit: Commit) -> bytes:
    data = encode_delta(commit.delta)
    check_delta(commit.kind, data, commit.delta)
    return data


def _encode_before(before: tuple[Update, ...]) -> bytes:
    data = encode_delta(before, MAX_BEFORE)
    check_delta(Kind.REBASE, data, before)
    return data


def _encode_replay(replay: Replay) -> bytes:
    data = encode_replay(replay)
    if decode_replay(data, replay.strategy) != replay:
        raise malformed("the blob of a replay does not decode to the same replay")
    return data
