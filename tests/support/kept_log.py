"""The log and the blobs of one change set, kept in memory, for its owner."""

from types import SimpleNamespace
from typing import Any, cast

from rebaser.change_set.log.commit_log import CommitLog
from rebaser_client.log.reader import LoadedState
from rebaser_core.blobs.address import address_of
from rebaser_core.checkpoint import open_checkpoint
from rebaser_core.commit import Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Update

WINDOW = 60_000  # milliseconds for which outcomes are kept


class KeptBlobs:
    """A blob store in memory. `kept` has the blobs by address."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        self.kept[address_of(data)] = data
        return address_of(data)

    async def has(self, address: str) -> bool:
        return address in self.kept


def kept_blobs() -> Any:
    """Return a `KeptBlobs` for code that takes a `BlobStore` and only stores blobs."""
    return KeptBlobs()


class KeptStream:
    """A stream that accepts every commit. `headers` are those of the newest message."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    async def publish(self, _: str, __: bytes, headers: dict[str, str], **more: Any) -> object:
        self.headers = headers
        return SimpleNamespace(sequence=more["expected_last_subject_sequence"] + 1)


def log_of(state: ChangeSetState, blobs: Any, stream: KeptStream | None = None) -> CommitLog:
    return CommitLog(
        cast("Any", stream or KeptStream()),
        Subjects(""),
        ChangeSetKey("ws", "cs"),
        LoadedState(state),
        blobs=blobs,
        owner="test",
        inline_max=100_000,
        retry_window=WINDOW / 1000,
        now_ms=lambda: 1,
        new_id=lambda: "0" * 26,
    )


async def append(commits: CommitLog, *updates: Update) -> None:
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.REBASE, delta=updates, before=(), covers=commits.state.covers))


def read_checkpoint(kept: dict[str, bytes], address: str) -> ChangeSetState:
    """Return the state in a checkpoint. Raises `KeyError` if a part of it is not in `kept`."""
    reader = open_checkpoint(kept[address], address)
    for part in reader.before:
        reader.add(kept[part.address])
    reader.add(kept[address])
    return reader.finish()[0]
