"""What client processes did, as they recorded it: one JSON object per line, written before and after each request.

Each line is one write, so a SIGKILL never leaves a part of a line. Times are seconds of the clock that all processes of
a machine share (CLOCK_MONOTONIC).
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rebaser_core.commit import Outcome
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.updates import Update, parse_update

LAX = replace(
    DEFAULT_LIMITS, max_id_length=2 * DEFAULT_LIMITS.max_id_length
)  # These limits allow clients to send what servers refuse.


class Book:
    """The file to which a client writes. `note` returns when the kernel has the line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"e": event, "at": time.monotonic(), **fields}) + "\n").encode())


@dataclass(frozen=True)
class Answer:
    """An answer to a request. `kind` is `stored` (enqueue has returned), `applied` or `rejected`."""

    kind: str
    at: float
    commit: int | None = None
    performed: int = 0
    code: str = ""


@dataclass
class Operation:
    """One request, with all answers that its client got. `due` is the expected outcome."""

    id: str
    change_set: str
    updates: tuple[Update, ...]
    sent: float
    due: Outcome = Outcome.SUCCESS
    answers: list[Answer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def done(self) -> float | None:
        """Return when the client first knew that the request was stored."""
        return min((answer.at for answer in self.answers), default=None)


@dataclass(frozen=True)
class Read:
    """A read of a change set. `seen` has the marker of each worker; `owed` is a log sequence that must be covered,
    because an answer before the read said so."""

    change_set: str
    sent: float
    last: int
    covers: int
    seen: dict[str, int]
    owed: int


@dataclass
class History:
    operations: dict[str, Operation] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # observations that no client may ever make
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, line: dict[str, Any]) -> None:
        kind = line["e"]
        self.counts[kind] += 1
        match kind:
            case "sent":
                updates = tuple(parse_update(one, LAX) for one in line["updates"])
                self.operations[line["id"]] = Operation(
                    line["id"], line["cs"], updates, line["at"], Outcome(line["due"])
                )
            case "stored" | "applied" | "rejected":
                answer = Answer(kind, line["at"], line.get("commit"), line.get("performed", 0), line.get("code", ""))
                self.operations[line["id"]].answers.append(answer)
            case "failed":
                self.operations[line["id"]].problems.append(line["error"])
            case "read":
                self.reads.append(
                    Read(line["cs"], line["sent"], line["last"], line["covers"], line["seen"], line["owed"])
                )
            case "trouble":
                self.troubles.append(line["what"])


def read_history(paths: Iterable[Path]) -> History:
    """Read what clients have written so far. A line that is being written at this moment is left out."""
    history = History()
    for path in sorted(paths):
        with path.open() as lines:
            for line in lines:
                if line.endswith("\n"):
                    history.add(json.loads(line))
    return history
