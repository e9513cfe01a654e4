"""Remembers commits of this server whose headers its sweeper need not read.

The sweeper reads the headers of all commits. Nearly all say that nothing is due. If a single server owns most change
sets, it has written these headers itself, and reading them back would take 4 % of its throughput.

Invariant: only commits whose headers change nothing for a change set that owes nothing are remembered. Whether the
change set owes nothing is known once all earlier commits have been read (`rebaser.sweeper.debts`).
"""

from collections.abc import Mapping

from rebaser_core.encoding.envelope import BRANCH, DEBT, UNKNOWN

MAX_COMMITS = 100_000  # maximum number of remembered commits; the sweeper passes over them every quarter of a second


class OwnCommits:
    """The subjects of commits by log sequence. Nothing is remembered until `begin` is called.

    `newest` is the highest log sequence that was added; 0 if none was.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._subjects: dict[int, str] = {}  # roughly in the order of the log
        self._is_wanted = False

    def __len__(self) -> int:
        return len(self._subjects)

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
        if self._is_wanted and headers.get(DEBT) == "0" and BRANCH not in headers and UNKNOWN not in headers:
            if len(self._subjects) >= MAX_COMMITS:
                self._subjects.clear()
            self._subjects[sequence] = subject
            self.newest = max(self.newest, sequence)

    def subject(self, sequence: int) -> str | None:
        """Return the subject of the commit at `sequence`, or None if it is not remembered."""
        return self._subjects.get(sequence)

    def forget_up_to(self, sequence: int) -> None:
        """Forget the commits up to `sequence`, except for some that were added after newer ones."""
        subjects = self._subjects
        read = []
        for one in subjects:
            if one > sequence:
                break
            read.append(one)
        for one in read:
            del subjects[one]
