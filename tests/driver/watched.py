"""Follows the log of a change set: the requests that were sent, the order in which they were decided, and the folded
state."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from rebaser_client import Commit, RebaserClient
from rebaser_core.commit import Kind, Outcome
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import State, Value
from tests.driver.formulas import Meaning
from tests.driver.oracle import Book, Found, Oracle, Wire, apply, conflicts, typed

WS = "driver"
SHOWN = 6  # differences that a report shows
TAIL = 14  # commits that a report shows


class Violation(AssertionError):  # noqa: N818 - what it is
    """A guarantee of Rebaser does not hold."""


@dataclass
class Sent:
    """A request that a client sent: its updates in the form of the test, and in the form of Rebaser."""

    updates: list[Wire]
    written: list[Wire]
    foreign: bool = False  # sent as edits from another change set
    recompute: bool = False


@dataclass
class Watched:
    """One change set. `sent` has the requests by id, `order` the position of each decided request."""

    name: str
    meanings: Mapping[str, Meaning]
    sent: dict[str, Sent] = field(default_factory=dict)
    book: Book = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)
    state: ChangeSetState = field(default_factory=ChangeSetState)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    counts: Counter[str] = field(default_factory=Counter)
    initial: list[Wire] = field(default_factory=list)
    keep: bool = False  # keeps the book after each commit, while a test needs older ones
    _books: dict[int, Book] = field(default_factory=dict)
    _more: anyio.Event = field(default_factory=anyio.Event)
    problem: Exception | None = None

    async def follow(self, client: RebaserClient) -> None:
        """Fold all commits as they arrive."""
        try:
            async for commit in client.watch(WS, self.name, after=0):
                self._take(commit)
                more, self._more = self._more, anyio.Event()
                more.set()
        except Exception as error:  # noqa: BLE001 - told by who waits
            self.problem = error
            self._more.set()

    def _take(self, commit: Commit) -> None:
        self.tail.append(_line(commit))
        if commit.previous != self.state.last:
            raise Violation(f"commit {commit.sequence} follows {commit.previous}, not {self.state.last}")
        written: list[Wire] = []
        for decision in commit.requests:
            sent = self.sent.get(decision.request_id)
            if sent is None or decision.request_id in self.decided:
                raise Violation(f"{decision.request_id} was decided twice, or never sent")
            self.decided[decision.request_id] = commit.sequence
            wanted = {Outcome.SUCCESS}
            if sent.foreign:
                wanted = {Outcome.CONFLICTS if conflicts(self.book, sent.updates) else Outcome.SUCCESS}
            if sent.recompute:
                wanted |= {Outcome.ERROR}
            if decision.outcome not in wanted:
                raise Violation(f"{decision}: not {wanted}")
            self.counts[f"request {decision.outcome}"] += 1
            if decision.outcome is Outcome.SUCCESS:
                written += sent.written
                apply(self.book, sent.updates)
        if commit.kind is Kind.REBASE and [one.to_wire() for one in commit.delta] != written:  # type: ignore[union-attr]
            raise Violation(f"the updates of commit {commit.sequence} are not those of its requests")
        self.state.fold(commit.sequence, commit)
        if self.keep:
            self._books[commit.sequence] = dict(self.book)
        self.counts[f"commit {commit.kind}"] += 1
        if commit.kind is Kind.DVU:
            self.counts["results"] += len(commit.delta)
            self.counts["tables"] += type(commit.delta).__name__ == "ComputedTable"
            self.counts["beside edits"] += (commit.covers or 0) < commit.previous

    async def until_decided(self) -> int:
        """Return the last commit with a request, once all requests that were sent are decided."""
        while self.problem is None and len(self.decided) < len(self.sent):
            await self._more.wait()
        self._check()
        return max(self.decided.values())

    async def until(self, sequence: int) -> None:
        """Return when the commit at `sequence` has been folded."""
        while self.problem is None and self.state.last < sequence:
            await self._more.wait()
        self._check()

    def _check(self) -> None:
        if self.problem is not None:
            raise Violation(f"following the log: {type(self.problem).__name__}: {self.problem}") from self.problem

    def book_at(self, sequence: int) -> Book:
        return self._books[max(one for one in self._books if one <= sequence)]

    def forget(self) -> None:
        self.keep, self._books = False, {}

    def start_keeping(self) -> None:
        self.keep, self._books = True, {self.state.last: dict(self.book)}

    def compare(self, book: Book, found: Mapping[str, Value], what: str, *, stale: bool) -> int:
        """Compare `found` with the values that follow from `book`, and return the number of derived values compared.
        Raises `Violation` for differences. With `stale`, derived values may be stale."""
        expected = Oracle(book, self.meanings).found
        lines = [f"{id_}: not there, {book[id_]}" for id_ in sorted(expected.keys() - found.keys())]
        lines += [f"{id_}: should not be there, is {found[id_]}" for id_ in sorted(found.keys() - expected.keys())]
        for id_ in sorted(expected.keys() & found.keys()):
            if found[id_].state is State.STALE and stale and book[id_]["op"] == "derive":
                continue
            if not agrees(found[id_], expected[id_]):
                inputs = {one: found.get(one) for one in _direct(book[id_])}
                lines.append(
                    f"{id_}: {book[id_]}\n    expected {expected[id_]}\n    found    {found[id_]}\n    inputs   "
                    f"{str(inputs)[:500]}"
                )
        if lines:
            shown = "\n  ".join(lines[:SHOWN])
            raise Violation(f"{what}: {len(lines)} of {len(expected)} differ\n  {shown}")
        return sum(1 for id_, one in found.items() if one.state is not State.STALE and book[id_]["op"] == "derive")


def agrees(found: Value, expected: Found) -> bool:
    fault = found.error
    if found.state.value != expected.state or typed(found.value) != typed(expected.value):
        return False
    if fault is None:
        return not expected.code
    told = not expected.message or fault.message == expected.message
    return (fault.code, fault.origin) == (expected.code, expected.origin) and told


def _direct(update: Wire) -> list[str]:
    given: list[Any] = list(update.get("inputs", {}).values())
    flat = [one for some in given for one in (some if isinstance(some, list) else [some])]
    return [one for one in flat if isinstance(one, str)]


def _line(commit: Commit) -> str:
    where = " in a blob" if commit.delta_blob else ""
    return (
        f"{commit.sequence} {commit.kind} covers={commit.covers} delta={len(commit.delta)} "
        f"{type(commit.delta).__name__}{where} requests={','.join(one.request_id for one in commit.requests)} "
        f"owner={commit.owner}"
    )
