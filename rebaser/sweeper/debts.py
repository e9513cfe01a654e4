"""Reads the headers of logs to find change sets that need an owner although no request is queued.

A change set needs an owner if its newest commit says that an update is due, or if the writer of that commit lacked a
function that this server has. The headers also show which change sets are closed and may be deleted later (`closed`).
"""

import anyio
from anyio import lowlevel

from rebaser.change_set.known_functions import any_available, load_functions
from rebaser.runtime.own_commits import OwnCommits
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_core.commit import BranchStatus
from rebaser_core.encoding.envelope import BRANCH, COVERS, DEBT, UNKNOWN
from rebaser_core.errors import UnprocessableError
from rebaser_core.messages import read_protected, read_status_after, read_sweep_headers, read_unknown
from rebaser_core.record import record
from rebaser_core.streams.subjects import Subjects

EXPIRING = (BranchStatus.APPLIED, BranchStatus.ABANDONED)
CHUNK = 128  # number of commits whose headers are read before other tasks may run
# Parts of raw headers. Only the names are searched for, because spaces may surround them. `_NO_DEBT` is the line that
# servers write.
_DEBT, _BRANCH, _UNKNOWN = DEBT.encode(), BRANCH.encode(), UNKNOWN.encode()
_NO_DEBT = b"\r\n%b: 0\r\n" % _DEBT
SILENCE = 1.0  # seconds without a header until the tracker asks NATS whether there are more


@record
class ClosedSince:
    """The log sequence of the newest commit of a closed change set, and the time at which it was stored (Unix ns)."""

    sequence: int
    stored_ns: int


class DebtTracker:
    """Tracks the change sets that need an owner because of their newest commit.

    `closed` maps the name (`ws.cs`) of each closed change set to its newest commit. It omits change sets that are
    protected or that were closed when they were created. `newest_ns` is the time at which the newest commit of all
    change sets was stored (Unix ns), of those whose headers were read and not needless. `read` always reads those of
    the newest commit of the stream.

    `owing_since` maps the name of each change set whose update is due to the time (Unix ns) of the oldest commit that
    this tracker has read since the last update. The update has been due since then at least.

    `own_commits` are commits of this server. Their headers are passed over as long as they directly follow what has
    been read.
    """

    def __init__(self, js: JetStream, subjects: Subjects, own_commits: OwnCommits | None = None) -> None:
        self._js = js
        self._subjects = subjects
        self._own_commits = OwnCommits() if own_commits is None else own_commits
        self._all = f"{subjects.root}.commits.*.*"
        self._name_begins = len(self._all) - len("*.*")
        self._created = ""
        self._lock = anyio.Lock()
        self._was_empty = False  # whether the stream was empty; then all later commits are read in order
        self._read_up_to = 0  # log sequence up to which headers have been read
        self._names: set[str] = set()
        self.closed: dict[str, ClosedSince] = {}
        self.newest_ns = 0
        self.owing_since: dict[str, int] = {}
        self._covered: dict[str, str] = {}  # maps the same names to the header `X-Covers` of their newest commit

    async def read(self) -> set[str]:
        """Return the change sets that need an owner, as `ws.cs`.

        The first call reads the headers of one commit per change set. Later calls read only the headers of newer
        commits. Raise `TransientError` if NATS does not answer.
        """
        await self.read_ahead(1)
        return self._names.copy()

    async def read_ahead(self, least: int) -> bool:
        """Read the headers of new commits, or pass over them, if there are at least `least` new commits. Return whether
        there were.

        The next `read` then has fewer left to read. Raise `TransientError` if NATS does not answer.
        """
        async with self._lock:
            stored = self._own_commits.newest  # before this call; so the stream contains it, unless it was set back
            info = await self._js.stream_info(self._subjects.commits_stream)
            if info.created != self._created or info.last_sequence < self._read_up_to:
                self._created, self._was_empty, self._read_up_to = info.created, False, 0
                self._names, self.closed, self.newest_ns, self.owing_since, self._covered = set(), {}, 0, {}, {}
                self._own_commits.clear()
            if stored > info.last_sequence:
                self._own_commits.clear()
            if not info.messages:
                self._was_empty, self._read_up_to = True, info.last_sequence
            if info.last_sequence < self._read_up_to + least:
                return False
            self._pass_over_own(info.last_sequence)
            if info.last_sequence >= self._read_up_to + least:
                await self._read_to(info.last_sequence)
            self._own_commits.forget_up_to(self._read_up_to)
            return True

    def _pass_over_own(self, last: int) -> None:
        """Pass over the next commits as long as this server wrote them and their headers change nothing.

        The newest commit, at log sequence `last`, is never passed over, because only NATS knows when it was stored.
        """
        at, own = self._read_up_to, self._own_commits
        while at + 1 < last and (subject := own.subject(at + 1)) is not None and self._is_settled(subject):
            at += 1
        self._read_up_to = at

    async def _read_to(self, last: int) -> None:
        await load_functions()
        consumer = OrderedConsumer(
            self._js,
            self._subjects.commits_stream,
            self._all,
            start=self._read_up_to + 1 if self._was_empty or self._read_up_to else "last_per_subject",
            headers_only=True,
            is_needless=self._is_needless,
        )
        async with consumer:
            while self._advance(consumer) < last:
                try:
                    with anyio.move_on_after(SILENCE):
                        await consumer.wait()
                finally:
                    self._advance(consumer)  # also after an error, so that the next call need not begin again
                silent = not consumer.pending
                for message in consumer.take(CHUNK):
                    self._record(message)
                    self._read_up_to = message.stream_sequence
                    self.newest_ns = max(self.newest_ns, message.timestamp_ns)
                if silent and self._read_up_to < last and await self._at_end():
                    self._read_up_to = last  # the remaining commits have been deleted
                await lowlevel.checkpoint()

    def _advance(self, consumer: OrderedConsumer) -> int:
        """Count needless headers as read. Return the log sequence up to which headers have been read."""
        if not consumer.pending:  # so all that was delivered was recorded, or is needless
            self._read_up_to = max(self._read_up_to, consumer.delivered)
        return self._read_up_to

    async def _at_end(self) -> bool:
        return await self._js.next(self._subjects.commits_stream, self._all, self._read_up_to + 1) is None

    def _is_needless(self, subject: str, raw_headers: bytes) -> bool:
        """Return whether the headers of a commit surely change nothing, as nearly all headers on a busy server."""
        return (
            _NO_DEBT in raw_headers
            and _BRANCH not in raw_headers
            and _UNKNOWN not in raw_headers
            and raw_headers.count(_DEBT) == 1
            and self._is_settled(subject)
        )

    def _is_settled(self, subject: str) -> bool:
        name = subject[self._name_begins :]
        return name not in self._names and name not in self.closed  # `_names` contains all names of `owing_since`

    def _record(self, message: Message) -> None:
        headers, name = message.headers, message.subject[self._name_begins :]
        try:
            _, debt = read_sweep_headers(headers)
        except UnprocessableError:
            return  # the message is not a commit, and is also skipped when a state is loaded
        if read_status_after(headers) in EXPIRING and not read_protected(headers):
            self.closed[name] = ClosedSince(message.stream_sequence, message.timestamp_ns)
        else:
            self.closed.pop(name, None)
        self._record_debt(name, debt, message)
        if debt or any_available(read_unknown(headers)):
            self._names.add(name)
        else:
            self._names.discard(name)

    def _record_debt(self, name: str, debt: int, message: Message) -> None:
        if not debt:
            self.owing_since.pop(name, None)
            self._covered.pop(name, None)
            return
        covered = message.headers.get(COVERS, "")
        if self._covered.get(name) != covered:  # an update has covered older edits, and newer ones are due
            self._covered[name], self.owing_since[name] = covered, message.timestamp_ns
