"""Checks what still waits, and for how long: no work may be without a task for long, and without faults nothing may be
late.

Times are virtual seconds.
"""

from collections.abc import Iterator

from rebaser_core.commit import Outcome
from rebaser_core.streams.subjects import Subjects
from tests.simulation.checker import Checker
from tests.simulation.history import History
from tests.simulation.model.store import Stream
from tests.simulation.rebases import left_behind

DECIDED_WITHIN = (
    20.0  # seconds after a request was stored; three change sets may share one slot, each with a slow update
)
COVERED_WITHIN = 20.0  # seconds after a commit that needs an update; a slow update takes 3 s, and two may come first
# Seconds after a decision, until the request is deleted and, if it is dead, copied to the dead letters.
TIDY_WITHIN = 5.0


class Rest:
    def __init__(self, checker: Checker, subjects: Subjects, streams: dict[str, Stream]) -> None:
        self._checker = checker
        self._subjects = subjects
        self._streams = streams
        self._stranded: dict[str, float] = {}

    def waits(self) -> str:
        """Return what is not done yet; empty at rest."""
        for history in self._checker.histories.values():
            for why in _open(history):
                return why
            if why := left_behind(self._checker.histories, history, self._checker.outdated()):
                return why
            for sequence, (decision, _) in history.decided.items():
                if decision.outcome is Outcome.DEAD and sequence not in history.dead:
                    return f"request {sequence} of {history.key} is dead, but has no dead letter"
        if self._subjects.tasks_stream not in self._streams:
            return "no server has started yet"
        for subject in self._tasks.subjects:
            return f"{subject} is held"
        return ""

    def stranded(self, now: float, bound: float) -> str:
        """Return what has waited without a task for longer than `bound` seconds, as observed at the calls of this
        method."""
        seen: dict[str, float] = {}
        if self._subjects.tasks_stream not in self._streams:
            return ""
        for history in self._checker.histories.values():
            subject = self._subjects.task(history.key)
            why = next(_open(history), "")
            if why and subject not in self._tasks.subjects:
                since = seen[subject] = self._stranded.get(subject, now)
                if now - since > bound:
                    return f"{why}, and there has been no task for {now - since:.1f} s"
        self._stranded = seen
        return ""

    def late(self, now: float) -> str:
        """Return what takes longer than is allowed when there are no faults."""
        queue = self._streams[self._subjects.requests_stream].messages
        for history in self._checker.histories.values():
            for asked in history.asked.values():
                decided = history.decided.get(asked.sequence)
                done = asked.at if decided is None else history.times[decided[1]]
                name = f"request {asked.sequence} ({asked.request_id}) of {history.key}"
                if decided is None:
                    if asked.request_id not in history.outcomes and now - asked.at > DECIDED_WITHIN:
                        return f"{name} is not decided after {now - asked.at:.1f} s"
                elif now - done > TIDY_WITHIN:
                    if decided[0].outcome is Outcome.DEAD and asked.sequence not in history.dead:
                        return f"{name} is not copied to the dead letters"
                    if asked.sequence in queue:
                        return f"{name} is still in the queue"
            if history.debt:
                # Inherited debt waits until the change set gets a request.
                since = max(history.covers, history.birth, history.restored - 1)
                began = min(at for sequence, at in history.times.items() if sequence > since)
                if now - began > COVERED_WITHIN:
                    return f"{history.key} has owed an update for {now - began:.1f} s"
        return ""

    @property
    def _tasks(self) -> Stream:
        return self._streams[self._subjects.tasks_stream]


def _open(history: History) -> Iterator[str]:
    for asked in history.asked.values():
        if asked.sequence not in history.decided and asked.request_id not in history.outcomes:
            yield f"request {asked.sequence} ({asked.request_id}) of {history.key} is not decided"
    if history.debt:
        yield f"{history.key} owes an update"
