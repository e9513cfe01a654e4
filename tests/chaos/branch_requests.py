"""Draws random requests to branches, based on the state of a model."""

import random
from dataclasses import dataclass
from typing import Any

from rebaser_client import Remove, Set, Update
from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import BranchStatus, Marking, Reverts, Strategy
from tests.support.branch_books import Definitions
from tests.support.branches import World

NAMES = ("main", "a", "b", "c", "d")
IDS = ("x", "y", "z")


@dataclass
class Asked:
    """A request to `name`: what is sent to the product, and the method of the model with its arguments. Positions in
    the arguments are log sequences of the product."""

    name: str
    method: str
    arguments: dict[str, Any]
    action: Any = None
    updates: tuple[Update, ...] = ()


@dataclass
class Requests:
    """Draws requests. `logs` has, by name, the log sequences of the product's commits."""

    rng: random.Random
    world: World
    logs: dict[str, list[int]]

    def draw(self) -> Asked:
        rng = self.rng
        newest = {name: books[-1] for name, books in self.world.books.items()}
        branches = [name for name, book in newest.items() if book.target is not None and book.status == "open"]
        known = branches if branches and rng.random() < 0.7 else list(newest)
        name, other = rng.choice(NAMES), rng.choice(known)
        kinds = {
            "edit": 30,
            "create": 4 if branches[1:] else 30,
            "rebase": 16,
            "apply": 16,
            "revert": 5,
            "mark": 10 if branches else 30,
        }
        match rng.choices([*kinds, "protect"], [*kinds.values(), 2])[0]:
            case "create":
                return self._draw_create(other)
            case "rebase":
                return self._draw_rebase(other)
            case "apply":
                at, strict, keep = self._position(other), rng.random() < 0.2, rng.random() < 0.3
                arguments = {"source": other, "at": at, "strict": strict, "keep": keep}
                target = self.world.book(other).target or name
                return Asked(target, "apply", arguments, Apply(other, at, strict, allow_stale=True, keep=keep))
            case "revert":
                first, last = sorted(rng.choices(self.logs[other][-8:], k=2))
                return Asked(other, "revert", {"first": first, "last": last}, Reverts(first, last))
            case "mark":
                closed = [name for name, book in newest.items() if book.status != "open"]
                other = rng.choice(closed) if closed and rng.random() < 0.7 else other
                status = rng.choice(("open", "deleted") if other in closed else ("open", "abandoned", "deleted"))
                return Asked(other, "mark", {"status": status}, Marking(status=BranchStatus(status)))
            case "protect":
                protected = rng.random() < 0.3
                return Asked(other, "mark", {"protected": protected}, Marking(protected=protected))
        delta: Definitions = {id_: rng.choice((None, 0, 1, 2)) for id_ in rng.sample(IDS, rng.choice((1, 1, 2)))}
        updates = tuple(Remove(id_) if one is None else Set(id_, one) for id_, one in delta.items())
        return Asked(name, "edit", {"delta": delta, "at": self._position(name)}, None, updates)

    def _draw_create(self, parent: str) -> Asked:
        free = [name for name in NAMES[1:] if name not in self.world.books or self.world.is_deleted(name)]
        child = self.rng.choice(free if free and self.rng.random() < 0.9 else NAMES[1:])
        at = self._position(parent)
        target = self.world.book(parent).target if self.rng.random() < 0.25 else None
        target = None if target == child or self.world.book(parent).status == "deleted" else target
        at = None if target else at
        return Asked(
            child,
            "create",
            {"parent": parent, "at": at, "sibling": target is not None},
            Create(parent, at, target),
        )

    def _draw_rebase(self, name: str) -> Asked:
        strategy = self.rng.choice(("record", "record", "record", "ours", "theirs"))
        target = self.world.book(name).target
        further = self.world.book(target).target if target is not None and self.rng.random() < 0.2 else None
        upto = self._position(target) if target is not None and further is None else None
        arguments = {"strategy": strategy, "upto": upto, "onto": further is not None}
        return Asked(name, "rebase", arguments, Rebase(upto, further, Strategy(strategy)))

    def _position(self, name: str) -> int | None:
        """Return None, or the log sequence of one of the newest commits of the change set `name`."""
        return self.rng.choice(self.logs[name][-6:]) if name in self.logs and self.rng.random() < 0.4 else None
