"""Remembers which commits this server wrote itself, so that its sweeper need not read their headers.

The sweeper reads the headers of all commits. Nearly all say that nothing is due. If a single server owns most change
sets, it has written these headers itself, and reading them back would lower its throughput by 4 %.

Invariant: a commit is remembered only if its headers say that no update is due, and have neither a branch nor unknown
functions. Such headers change nothing, unless the change set owed something before, or is closed. The sweeper checks
this when it knows all earlier commits (`rebaser.sweeper.debts`).
"""

from collections.abc import Mapping

from rebaser_core.encoding.envelope import BRANCH, DEBT, UNKNOWN

# The maximum number of remembered commits. While there are thousands of new ones in a second, the sweeper passes over
# them every quarter of a second.
MAX_COMMITS = 20_000


class OwnCommits:
    """The subjects of commits by log sequence. Nothing is remembered until `begin` is called.

    `newest` is the highest log sequence that was added since the last `clear`; 0 if none was.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._subjects: dict[int, str] = {}  # in the order of the answers, which is nearly that of the log
        self._is_wanted = False

    def begin(self) -> None:
        """Remember commits from now on, because this server sweeps."""
        self._is_wanted = True

    def end(self) -> None:
        """Forget all commits, and remember no more."""
        self._is_wanted = False
        self.clear()

    def clear(self) -> None:
        """Forget all commits."""
        self.newest = 0
        self._subjects.clear()

    def add(self, sequence: int, subject: str, headers: Mapping[str, str]) -> None:
        """Remember the commit that NATS has stored at `sequence`, unless its headers may change something."""
        if not self._is_wanted:
            return
        if headers.get(DEBT) != "0" or BRANCH in headers or UNKNOWN in headers:
            self._subjects.pop(sequence, None)  # exists only if NATS has lost an earlier commit with this sequence
            return
        if len(self._subjects) >= MAX_COMMITS:
            self.clear()  # the sweeper does not keep up, and will read these headers
        self._subjects[sequence] = subject
        self.newest = max(self.newest, sequence)

    def subject(self, sequence: int) -> str | None:
        """Return the subject of the commit at `sequence`, or None if it is not remembered."""
        return self._subjects.get(sequence)

    def forget_up_to(self, sequence: int) -> None:
        """Forget the commits up to `sequence`. Those that were added out of order may be forgotten by a later call."""
        subjects = self._subjects
        read = []
        for one in subjects:
            if one > sequence:
                break
            read.append(one)
        for one in read:
            del subjects[one]
