"""Writes checkpoints, so that the cost of loading a change set depends on the size of its state, not of its log.

Invariant: all parts of a checkpoint are stored and verified before a commit refers to the checkpoint. The log is never
purged beyond the previous checkpoint, so that a reader that started there still finds the messages that follow.
"""

from collections.abc import Sequence

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.runtime.concurrency import run_concurrently
from rebaser.runtime.context import Context
from rebaser.telemetry.feeds import checkpoint_written, clock
from rebaser_client.blobs import BlobStore
from rebaser_client.blobs.freshness import Freshness
from rebaser_client.cooperative import run_offloaded
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_client.nats.messages import as_int
from rebaser_core.checkpoint import Chain
from rebaser_core.checkpoint.writer import CheckpointDraft, WrittenCheckpoint
from rebaser_core.commit import BlobRef, CheckpointRef, Kind
from rebaser_core.history import purge_through

SHARE = 16  # reading a log takes about as long as reading a checkpoint that is 16 times as large
CROWDED = 0.8  # share of the size limit of the stream of all logs above which no history is kept
CONCURRENT = 8  # number of blobs that are looked up concurrently
ROW = 100  # approximate size of a row in bytes


def due(commits: CommitLog, min_bytes: int) -> bool:
    """Return whether a checkpoint is due. It is due if the log since the last checkpoint (`CommitLog.tail_weight`)
    weighs more than `min_bytes`, and more than 1/`SHARE` of the size of that checkpoint."""
    checkpoint = commits.state.checkpoint
    weight = commits.tail_weight
    return weight > min_bytes and weight > (checkpoint.size // SHARE if checkpoint else 0)


async def write(context: Context, commits: CommitLog, *, full: bool = False) -> None:
    """Store the current state as a checkpoint, append a commit that refers to it, and purge the messages of the log
    that are no longer needed.

    If `full` is true, all parts of the checkpoint are stored again, even those that earlier checkpoints stored.
    """
    await store(context.blobs, commits, full=full)
    if not commits.chain.deltas:  # the owner has loaded any other base, or another state was loaded from it
        context.reader.remember(commits.chain, commits.state)
    through = await _purge_through(context, commits)
    parts = [part.address for part in commits.chain.base + commits.chain.deltas]
    if through and not full and not await all_stored(context.blobs, parts):  # never purge before all parts are stored
        commits.logger.error("checkpoint_incomplete", seq=commits.chain.last)
        await store(context.blobs, commits, full=True)
    if through:
        subjects = context.subjects
        await context.js.purge(subjects.commits_stream, subjects.commits(commits.key), sequence=through + 1)


async def all_stored(blobs: BlobStore, addresses: Sequence[str]) -> bool:
    """Return whether the blobs at all `addresses` are stored."""
    missing: list[str] = []

    async def look(address: str) -> None:
        if not await blobs.has(address):
            missing.append(address)

    await run_concurrently(addresses, look, CONCURRENT)
    return not missing


async def _purge_through(context: Context, commits: CommitLog) -> int:
    """Return the log sequence of the last message to purge; 0 if nothing is to be purged."""
    marks, weight, retention = commits.state.marks, commits.state.weight, context.settings.retention()
    through, at_most = (purge_through(marks, weight, retention, crowded=crowded) for crowded in (False, True))
    if through < at_most and is_crowded(await context.js.stream_info(context.subjects.commits_stream)):
        return at_most
    return through


def is_crowded(logs: StreamInfo) -> bool:
    """Return whether the stream of all logs is too full to keep history. If the stream filled up completely, no owner
    could append a commit."""
    bound = as_int(logs.config.get("max_bytes"))
    return 0 < bound < logs.bytes / CROWDED


async def put_all(blobs: BlobStore, written: WrittenCheckpoint) -> tuple[CheckpointRef, tuple[str, ...]]:
    """Store a checkpoint. Return the reference to it, and the addresses of all blobs that it needs."""
    for data in written.parts:
        await blobs.put(data)
    chain, changes = written.chain, None
    if written.changes is not None:
        changes = BlobRef(await blobs.put(written.changes), len(written.changes))
    size = chain.size + (changes.size if changes is not None else 0)
    needed = [part.address for part in chain.base + chain.deltas] + ([changes.address] if changes is not None else [])
    return CheckpointRef(chain.newest.address, chain.last, size, changes), tuple(needed)


async def store(blobs: BlobStore, commits: CommitLog, *, full: bool = False) -> None:
    """Store the current state as a checkpoint, and append a commit that refers to it. For `full`, see `write`."""
    freshness, began = Freshness(), clock()
    async with commits.view() as view:
        weight = commits.tail_weight
        chain = Chain() if full else commits.chain
        draft = CheckpointDraft(commits.state, view, chain, tracked=commits.history)
        try:
            await run_offloaded(draft.rows * ROW, view.run, draft.copy)
        except BaseException:
            draft.discard()
            raise
    try:
        written = await run_offloaded(draft.encoded_rows * ROW, draft.write)
        chain = written.chain
        reference, needed = await put_all(blobs, written)
        async with commits.append_lock():
            debt = commits.state.debt
            needed += commits.state.results()
            commit = commits.draft(Kind.CHECKPOINT, checkpoint=reference, debt=debt, blobs=needed)
            await commits.append(commit, freshness)
            commits.tail_weight -= weight
            commits.chain = chain
    except BaseException:
        draft.discard()
        raise
    size = sum(map(len, written.parts))
    checkpoint_written(began, commits.key, size, commits.traces)
    commits.logger.info(
        "checkpoint_written",
        seq=chain.last,
        base=draft.is_base,
        rows=draft.rows,
        bytes=size,
        parts=len(chain.base + chain.deltas),
        size=chain.size,
    )
