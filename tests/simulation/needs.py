"""Checks the invariants of garbage collection: which blobs stored messages need, and what happens to blobs.

It counts references without the product's code: it decodes messages, and reads the parts of checkpoints. At each step
it checks:

- No blob that a stored message needs is erased, and no message names a blob that is not stored.
- Whoever names a blob has stored it, or has seen it named by another message, a short time before.
- A candidate was unneeded at some moment after its run had listed the store, or was stored again after that: a client
  may store what commits still need, and a run that has read the queue before misses the request once these commits are
  purged. A later run notices by the blob's time that it was stored, and lets its grace period start again.
- A blob that goes to the trash was also unneeded in a run at least one grace period earlier.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from rebaser_core.blobs import garbage
from rebaser_core.blobs.address import find_addresses
from rebaser_core.checkpoint import open_checkpoint
from rebaser_core.commit import Commit, Kind
from rebaser_core.messages import decode_addresses, decode_commit, read_blobs
from rebaser_core.streams.subjects import Subjects
from tests.simulation.history import Violation
from tests.simulation.model.store import Stored, Stream

DELAYED = 300.0  # longest time, in seconds, that a message may be on its way


@dataclass
class Blob:
    stored: float
    trashed: bool = False


@dataclass
class Window:
    """What has happened since a run listed the store: `free` are the blobs that no message needed at some moment, and
    `renewed` are the blobs that were stored again."""

    free: set[str] = field(default_factory=set)
    renewed: set[str] = field(default_factory=set)


class Needs:
    def __init__(
        self,
        subjects: Subjects,
        read: Callable[[str], bytes],
        now: Callable[[], float],
        tell: Callable[[str, str], None],
    ) -> None:
        self._subjects = subjects
        self._read = read
        self._now = now
        self._tell = tell
        self.violation: Violation | None = None
        self.blobs: dict[str, Blob] = {}
        # By address: stream and sequence of each message that needs the blob.
        self.needed: dict[str, set[tuple[str, int]]] = {}
        self._named: dict[tuple[str, int], set[str]] = {}
        self._last_needed: dict[str, float] = {}
        self._windows: dict[str, Window] = {}  # by the name of the collector
        # Start of each run (ms), and the addresses that no message needed at some moment of it.
        self._runs: list[tuple[int, set[str]]] = []
        self.counts = {"runs": 0, "trashed": 0, "erased": 0, "named": 0}

    # -- what happens ----------------------------------------------------------------------------------------------

    def listed(self, who: str) -> None:
        """Note that `who` has listed the store for its run."""
        self._windows[who] = Window({address for address in self.blobs if not self.needed.get(address)})

    def watch(self, stream: Stream, stored: Stored, removed: bool) -> None:
        if self.violation is not None:
            return
        try:
            if stored.subject.startswith("$O."):
                if ".M." in stored.subject and not removed:
                    self._described(stored)
            elif removed:
                self._release(stream.name, stored.sequence)
            elif stored.subject.startswith(f"{self._subjects.root}."):
                self._message(stream.name, stored)
        except Violation as violation:
            self.violation = violation
            self._tell("!!!", str(violation))

    # -- blobs -----------------------------------------------------------------------------------------------------

    def _described(self, stored: Stored) -> None:
        address, raw = _address(stored.subject), json.loads(stored.data)
        if not raw.get("deleted"):
            self.blobs[address] = Blob(self._now())
            self._free(address)
            for window in self._windows.values():
                window.renewed.add(address)
        elif raw.get("metadata"):
            self.counts["trashed"] += 1
            self.blobs[address] = Blob(self._now(), trashed=True)
            now_ms = stored.time_ns // 1_000_000
            before = [free for began, free in self._runs[:-1] if began <= now_ms - garbage.GRACE * 1000]
            if not any(address in free for free in before):
                raise Violation(
                    f"{address} goes to the trash, although no run at least a grace period earlier found it unneeded"
                )
        else:
            self.counts["erased"] += 1
            if self.needed.get(address):
                raise Violation(f"{address} is erased, although {sorted(self.needed[address])} need it")
            self.blobs.pop(address, None)

    def _free(self, address: str) -> None:
        if not self.needed.get(address):
            for window in self._windows.values():
                window.free.add(address)

    # -- messages --------------------------------------------------------------------------------------------------

    def _message(self, stream: str, stored: Stored) -> None:
        if stream == self._subjects.commits_stream:
            commit = decode_commit(stored.headers, stored.data)
            named = self._in_commit(stored, commit)
            if commit.kind is Kind.GC:
                self._ran(commit)
        else:
            named = find_addresses(stored.data) | find_addresses(" ".join(stored.headers.values()).encode())
        now = self._now()
        for address in sorted(named):
            self.counts["named"] += 1
            blob = self.blobs.get(address)
            if blob is None:
                raise Violation(f"message {stored.sequence} of {stored.subject} names {address}, which is not stored")
            fresh = now - blob.stored <= 2 * garbage.FRESH_FOR + DELAYED
            known = (
                self.needed.get(address) or now - self._last_needed.get(address, -1e18) <= garbage.FRESH_FOR + DELAYED
            )
            if not fresh and not known:
                age = now - blob.stored
                raise Violation(
                    f"message {stored.sequence} names {address}, which was stored {age:.0f} s ago, and which no message"
                    " has needed recently"
                )
        self._named[stream, stored.sequence] = named
        for address in named:
            self.needed.setdefault(address, set()).add((stream, stored.sequence))

    def _in_commit(self, stored: Stored, commit: Commit) -> set[str]:
        named = set(read_blobs(stored.headers))
        for one in [one for one in named if one.startswith("@")]:
            named = {one[1:], *decode_addresses(self._read(one[1:]))}
        parts = [commit.delta_blob, commit.before_blob]
        needs = {part.address for part in parts if part is not None}
        if commit.kind is Kind.CHECKPOINT and commit.checkpoint is not None:
            newest = commit.checkpoint.address
            needs |= {newest, *(part.address for part in open_checkpoint(self._read(newest)).before)}
        if not needs <= named:
            raise Violation(f"commit {stored.sequence} needs {sorted(needs - named)}, but does not name these blobs")
        return named

    def _ran(self, commit: Commit) -> None:
        self.counts["runs"] += 1
        collection, window = commit.collection, self._windows.pop(commit.owner, Window())
        assert collection is not None
        candidates = garbage.decode_candidates(self._read(collection.listed.address))
        if wrong := sorted(candidates.keys() - window.free - window.renewed):
            raise Violation(
                f"the run of {commit.owner} takes {wrong} for garbage, although messages needed it all the time"
            )
        self._runs.append((collection.began_ms, window.free))

    def _release(self, stream: str, sequence: int) -> None:
        for address in self._named.pop((stream, sequence), ()):
            holders = self.needed[address]
            holders.discard((stream, sequence))
            self._last_needed[address] = self._now()
            self._free(address)


def _address(subject: str) -> str:
    return base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
