"""Checks what still waits, and for how long: no work may be without a task for long, and without faults nothing may be
late. `explain` has to agree about what waits.

Times are virtual seconds.
"""

from collections.abc import Iterator

from rebaser_core.commit import Outcome
from rebaser_core.explain.facts import ChangeSetFacts, LogFacts, QueueFacts, ServerFacts, TaskFacts
from rebaser_core.explain.owner_facts import OwnerFacts
from rebaser_core.explain.reasons import explain
from rebaser_core.messages import decode_commit
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

    def unexplained(self) -> str:
        """Return what waits although `explain` says that nothing does."""
        for history in self._checker.histories.values():
            if why := next(_open(history), ""):
                reasons = explain(self._facts(history))
                if not any(reason.waits for reason in reasons):
                    return f"{why}, but explain says: {', '.join(reason.text for reason in reasons)}"
        return ""

    def _facts(self, history: History) -> ChangeSetFacts:
        """Return the facts that the streams have now, with a server that knows nothing of the change set."""
        key, subjects = history.key, self._subjects
        requests, commits = (self._streams.get(name) for name in (subjects.requests_stream, subjects.commits_stream))
        tasks = self._streams.get(subjects.tasks_stream)
        queued = 0 if requests is None else len(requests.subjects.get(subjects.requests(key), ()))
        logged: dict[int, None] = {} if commits is None else commits.subjects.get(subjects.commits(key), {})
        log = None
        if commits is not None and logged:
            stored = commits.messages[next(reversed(logged))]
            commit = decode_commit(stored.headers, stored.data)
            covers = stored.sequence if commit.covers is None else commit.covers
            log = LogFacts(stored.sequence, covers=covers, debt=commit.debt)
        told = tasks is not None and subjects.task(key) in tasks.subjects
        return ChangeSetFacts(
            key.workspace,
            key.change_set,
            (ServerFacts("idle", about=OwnerFacts()),),
            QueueFacts(queued),
            TaskFacts(0.0, delivered=True) if told else None,
            log,
        )

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
