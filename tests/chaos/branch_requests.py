"""Draws random requests to branches, based on the state of a model."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rebaser_client import Derive, Match, Remove, Set, Unset, Update
from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import BranchStatus, Marking, Reverts, Strategy
from rebaser_core.ids import RequestId
from tests.driver.formulas import Meaning, numeric
from tests.support.branch_books import Definition
from tests.support.branches import World

NAMES = ("main", "a", "-b_", "0", "D" * 64)
IDS = ("x", "y/1", "y/2", 'ü`" *', "😀/" + "k" * 500)
DERIVED = ("s/1", "s/2", "y/3")
PATTERNS = ("y/*", "s/*", "**1", "?")
VALUES: tuple[Any, ...] = (0, 1, 2, 0, 1, 2, 1.0, True, None, "", "ü", [1, {"a": None}], -(2**63))
LARGE = "large"  # an id that is no input, and whose values do not fit in a commit
LARGE_VALUES = ("L" * 70_000, "M" * 200_000)


@dataclass(frozen=True)
class Asked:
    """A request to the change set `name`. Positions are log sequences."""

    name: str
    updates: tuple[Update, ...] = ()
    at: int | None = None
    action: Any = None

    def __str__(self) -> str:
        said = repr(self.action) if self.action is not None else f"{list(self.updates)} at {self.at}"
        return f"{short(self.name)}: {short(said)}"


def short(text: object) -> str:
    """Return a text in which a character that is repeated many times is left out."""
    return re.sub(r"(.)\1{20,}", r"\1…", str(text))


def text_of(update: Update | None) -> Definition:
    """Return the definition that `update` makes, as the model keeps it: JSON; None if the value is removed."""
    if update is None or type(update) is Remove:
        return None
    wire = update.to_wire()
    if wire["op"] == "derive":
        wire = {"inputs": {}, "params": {}} | wire
    return json.dumps({name: one for name, one in wire.items() if name != "id"}, sort_keys=True)


def wire_of(id_: str, definition: Definition) -> dict[str, Any]:
    """Return a definition of the model as an edit in the form of a file of updates."""
    wire: dict[str, Any] = json.loads(str(definition))
    return wire | {"id": id_}


class Known(Protocol):
    """What is known of a workspace: `Ledger` describes the attributes."""

    world: World
    logs: dict[str, list[int]]
    edits: dict[str, list[tuple[int, str]]]


@dataclass
class Requests:
    """Draws requests. The meanings of drawn formulas are added to `formulas`."""

    rng: random.Random
    known: Known
    formulas: dict[str, Meaning] = field(default_factory=dict)

    @property
    def world(self) -> World:
        return self.known.world

    def draw(self) -> Asked:
        rng = self.rng
        newest = {name: books[-1] for name, books in self.world.books.items()}
        branches = [name for name, book in newest.items() if book.target is not None and book.status == "open"]
        known = branches if branches and rng.random() < 0.7 else list(newest)
        name, other = rng.choice(NAMES), rng.choice(known)
        kinds: dict[Callable[[str, str], Asked], int] = {
            self._edit: 30,
            self._create: 4 if branches[1:] else 30,
            self._rebase: 16,
            self._apply: 16,
            self._revert: 8,
            self._mark: 10 if branches else 30,
            self._protect: 2,
        }
        return rng.choices([*kinds], [*kinds.values()])[0](name, other)

    def updates(self) -> tuple[Update, ...]:
        ids = self.rng.sample((*IDS, *DERIVED, LARGE), self.rng.choice((1, 1, 2, 4)))
        return tuple([self._update(id_) for id_ in ids])

    def _update(self, id_: str) -> Update:
        rng = self.rng
        roll = rng.random()
        if roll < 0.2:
            return Remove(id_)
        if id_ == LARGE:
            return Set(id_, rng.choice(LARGE_VALUES))
        if roll < 0.25:
            return Unset(id_)
        return self._derive(id_) if id_ in DERIVED else Set(id_, rng.choice(VALUES))

    def _derive(self, id_: str) -> Derive:
        rng, some = self.rng, (*IDS, *DERIVED)
        match rng.choice(("sum", "list", "count", "coalesce", "by_id", "cel")):
            case "cel":
                text, meaning = numeric(rng, ["a", "b"])
                self.formulas[text] = meaning
                return Derive(id_, "cel", {"a": rng.choice(some), "b": rng.choice(some)}, {"expr": text})
            case "by_id":
                return Derive(id_, "by_id", {"of": Match(rng.choice(PATTERNS))})
            case function:
                of: list[str | Match] = [rng.choice(some) for _ in range(rng.randint(1, 3))]
                of += [Match(rng.choice(PATTERNS))] if rng.random() < 0.4 else []
                return Derive(id_, function, {"of": of}, {"default": 7} if function == "coalesce" else {})

    def _edit(self, name: str, _: str) -> Asked:
        return Asked(name, self.updates(), self._position(name))

    def _create(self, _: str, parent: str) -> Asked:
        rng = self.rng
        free = [name for name in NAMES[1:] if name not in self.world.books or self.world.is_deleted(name)]
        child = rng.choice(free if free and rng.random() < 0.9 else NAMES[1:])
        at = self._position(parent)
        target = self.world.book(parent).target if rng.random() < 0.25 else None
        target = None if target == child or self.world.book(parent).status == "deleted" else target
        at = None if target else at
        closed, follows = rng.random() < 0.05, rng.random() < 0.7
        return Asked(child, action=Create(parent, at, target, closed, follows))

    def _rebase(self, _: str, name: str) -> Asked:
        strategy = Strategy(self.rng.choice(("record", "record", "record", "ours", "theirs")))
        target = self.world.book(name).target
        further = self.world.book(target).target if target is not None and self.rng.random() < 0.2 else None
        upto = self._position(target) if target is not None and further is None else None
        return Asked(name, action=Rebase(upto, further, strategy))

    def _apply(self, name: str, source: str) -> Asked:
        rng = self.rng
        target = self.world.book(source).target or name
        strict, allow_stale, keep = rng.random() < 0.2, rng.random() < 0.8, rng.random() < 0.3
        return Asked(target, action=Apply(source, self._position(source), strict, allow_stale, keep))

    def _revert(self, _: str, name: str) -> Asked:
        rng, target = self.rng, self.world.book(name).target
        if target is not None and rng.random() < 0.3:
            first, last = sorted(rng.choices(self.known.logs[target][-12:], k=2))
            return Asked(name, action=Reverts(first, last, None, target))
        if self.known.edits.get(name) and rng.random() < 0.4:
            commit, request = rng.choice(self.known.edits[name][-6:])
            return Asked(name, action=Reverts(commit, commit, RequestId(request)))
        first, last = sorted(rng.choices(self.known.logs[name][-8:], k=2))
        return Asked(name, action=Reverts(first, last))

    def _mark(self, _: str, name: str) -> Asked:
        rng = self.rng
        closed = [one for one, books in self.world.books.items() if books[-1].status != "open"]
        name = rng.choice(closed) if closed and rng.random() < 0.7 else name
        status = rng.choice(("open", "deleted") if name in closed else ("open", "abandoned", "applied", "deleted"))
        return Asked(name, action=Marking(status=BranchStatus(status)))

    def _protect(self, _: str, name: str) -> Asked:
        return Asked(name, action=Marking(protected=self.rng.random() < 0.3))

    def _position(self, name: str) -> int | None:
        """Return None, or the log sequence of one of the newest commits of the change set `name`."""
        return (
            self.rng.choice(self.known.logs[name][-6:]) if name in self.known.logs and self.rng.random() < 0.4 else None
        )
