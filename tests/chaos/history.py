"""What client processes did, in their own words: one JSON object a line, written before and after each request.

A line is one write, so it survives SIGKILL whole or was never written. Times are seconds of the clock that all
processes of a machine share (CLOCK_MONOTONIC).
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
)  # so that clients send what servers refuse


class Book:
    """Where a client writes. `note` returns when the line is in the kernel's hands."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"e": event, "at": time.monotonic(), **fields}) + "\n").encode())


@dataclass(frozen=True)
class Answer:
    """What a client was told. `kind`: `stored` (enqueue returned), `applied`, `rejected`."""

    kind: str
    at: float
    commit: int | None = None
    performed: int = 0
    code: str = ""


@dataclass
class Operation:
    """One request, with all answers that its client got to it. `due`: what it asks for."""

    id: str
    change_set: str
    updates: tuple[Update, ...]
    sent: float
    due: Outcome = Outcome.SUCCESS
    answers: list[Answer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def done(self) -> float | None:
        """When the client first knew that it was stored."""
        return min((answer.at for answer in self.answers), default=None)


@dataclass(frozen=True)
class Read:
    """What a client saw of a change set. `seen`: the marker of each worker; `owed`: a log sequence that has to be
    covered, because the client was told so before it read."""

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
    troubles: list[str] = field(default_factory=list)  # what no client may ever see
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
    history = History()
    for path in sorted(paths):
        with path.open() as lines:
            for line in lines:
                history.add(json.loads(line))
    return history
