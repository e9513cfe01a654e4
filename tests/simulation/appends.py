"""Checks the order of what a process sends: an owner sends nothing that depends on an append before the append is
answered, and a client has its request stored before it publishes the task. A task without a reply subject is a hint, on
which nothing relies, and which may precede the request.

The checks hold only in worlds in which no process is killed or stopped: elsewhere, an owner may abandon an append.
"""

from collections.abc import Callable

from rebaser_core.streams.subjects import Subjects
from tests.simulation.loop import Process
from tests.simulation.model.store import Stream

FINAL = (b"", b"+ACK", b"-NAK")


class Appends:
    """The unanswered appends of each process. `broken` is called with a text for each violation of the order."""

    def __init__(self, subjects: Subjects, streams: dict[str, Stream], broken: Callable[[str], None]) -> None:
        self._subjects = subjects
        self._streams = streams
        self._broken = broken
        self._open: dict[tuple[Process, str], bytes] = {}
        self._replies: dict[str, tuple[Process, str]] = {}
        self._stored: set[tuple[Process, str]] = set()

    def sent(self, process: Process, subject: str, data: bytes, reply: str) -> None:
        """Note that `process` sends a message, and check whether it may."""
        if subject.startswith(f"{self._subjects.root}.commits."):
            before = self._open.get((process, subject))
            if before is not None and before != data:
                self._broken(f"{process} appends another commit to {subject} before the last one was answered")
            self._open[process, subject] = data
            self._replies[reply] = process, subject
        elif subject.startswith(f"{self._subjects.root}.requests."):
            self._replies[reply] = process, subject
        elif subject.startswith(f"{self._subjects.root}.tasks.") and process.name.startswith("c") and reply:
            _, key = self._subjects.parse(subject)
            if (process, self._subjects.requests(key)) not in self._stored:
                self._broken(f"{process} publishes a task of {key} before it has stored a request")
        elif subject.startswith("$JS.ACK.") and data[:4] in FINAL:
            sequence = int(subject.split(".")[5])
            task = self._streams[subject.split(".")[2]].messages.get(sequence)
            ours = task is not None and task.subject != self._subjects.sweep
            kind, key = self._subjects.parse(task.subject) if task is not None and ours else ("", None)  # type: ignore[assignment]
            if key is not None and (process, self._subjects.commits(key)) in self._open:
                self._broken(f"{process} ends its {kind} of {key} before its last append was answered")

    def heard(self, subject: str) -> None:
        """Note that a message has reached the process that subscribed to `subject`."""
        sent = self._replies.pop(subject, None)
        if sent is not None:
            self._open.pop(sent, None)
            self._stored.add(sent)
