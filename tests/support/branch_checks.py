"""Checks what users expect of branches: from whole states, and from the definitions that both sides last had in common.

The field `changes`, which the model uses to decide, is not used here. `Checks` follows a `World`: pass each request to
it. It raises an `AssertionError` for each broken expectation.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.support.branch_books import Book, Commit, Definitions, RefusedError
from tests.support.branches import World

EDITS = ("edit", "apply", "revert")


@dataclass
class Pending:
    """An apply that the branch has not replayed yet. From the replay on, both sides agree on what the target took."""

    applied: int  # position of the branch
    commit: int  # position of the target
    taken: Definitions


@dataclass
class Agreed:
    """The last definition, by id, that a branch and its target had in common. If an id is missing, both had no
    definition."""

    definitions: Definitions = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)


class Checks:
    """Sends requests to a world, and checks each result."""

    def __init__(self, world: World) -> None:
        self.world = world
        # By branch, in order: since which position of the branch each holds.
        self.agreed: dict[str, list[tuple[int, Agreed]]] = {}

    def request(self, method: str, **arguments: Any) -> Commit | str:
        """Send a request. Return its commit, or the code with which it was refused."""
        world = self.world
        name = world.queue[0][0] if method == "settle" and world.queue else arguments.get("name", "")
        old = deepcopy(world.books[name][-1]) if name in world.books else Book(status="deleted")
        try:
            commit: Commit = getattr(world, method)(**arguments)
        except RefusedError as refused:
            return str(refused)
        try:
            self._check(name, old, commit, arguments)
        except RefusedError as refused:
            raise AssertionError(f"a {commit.kind} needs a change set that does not exist: {refused}") from refused
        self._check_law()
        return commit

    def _check(self, name: str, old: Book, commit: Commit, arguments: dict[str, Any]) -> None:
        book = self.world.book(name)
        if commit.kind == "mark":
            assert old.status != "deleted", "a deleted change set was marked"
        elif commit.kind == "create":
            self._check_create(name, old, book, commit)
        else:
            assert old.status == "open" or not old.sequence, (
                f"a {commit.kind} was accepted by a change set that is {old.status}"
            )
            assert commit.before == {id_: old.cells.get(id_) for id_ in commit.delta}, (
                "`before` does not have the definitions before the commit"
            )
            check: Any = getattr(self, f"_check_{commit.kind}")
            check(name, old, book, commit, arguments)

    def _now(self, name: str, at: int | None = None) -> Agreed:
        return [agreed for sequence, agreed in self.agreed[name] if at is None or sequence <= at][-1]

    def _changed(self, name: str, sequence: int) -> Agreed:
        agreed = deepcopy(self._now(name))
        self.agreed[name].append((sequence, agreed))
        return agreed

    def _check_law(self) -> None:
        """Check that each branch, with its changes undone, equals its target at the base."""
        for name in self.world.books:
            book = self.world.book(name)
            if book.target is None or book.status == "deleted":
                continue
            base = self.world.book(book.target, book.base).cells
            for id_ in base.keys() | book.cells.keys() | book.changes.keys():
                assert book.theirs(id_) == base.get(id_), (
                    f"{name}, with its changes undone, differs from its target at the base: {id_}"
                )

    def _check_create(self, name: str, old: Book, book: Book, commit: Commit) -> None:
        assert old.status == "deleted", "an existing change set was created again"
        assert commit.source is not None
        parent, at = commit.source
        origin = self.world.book(parent, at)
        assert book.cells == origin.cells
        if book.target == parent:
            assert not book.changes, "a new branch has changes"
            assert not book.conflicts, "a new branch has conflicts"
            agreed = Agreed(dict(origin.cells))
        else:
            assert book.changes == origin.changes
            inherited = self._now(parent, at)
            agreed = Agreed(dict(inherited.definitions))
        self.agreed.setdefault(name, []).append((commit.sequence, agreed))

    def _check_edit(self, name: str, old: Book, book: Book, commit: Commit, arguments: dict[str, Any]) -> None:
        at = arguments["at"]
        assert all(book.cells.get(id_) == definition for id_, definition in commit.delta.items())
        if at is not None and name in self.world.logs:
            for later in self.world.commits(name, at, old.sequence):
                assert not later.delta.keys() & commit.delta.keys(), (
                    "an edit replaced a definition that its author had not seen"
                )
            told = [old.conflicts[id_].told for id_ in commit.delta if id_ in old.conflicts]
            assert max([old.birth, *told]) <= at, (
                "an edit was accepted although its author had not seen the conflict, or the new change set"
            )
        if book.target is not None:
            agreed = self._changed(name, commit.sequence)
            for id_ in old.conflicts.keys() - book.conflicts.keys():
                assert at is not None, "an edit without a position settled a conflict"
                agreed.definitions[id_] = old.theirs(id_)

    def _check_apply(self, name: str, old: Book, book: Book, commit: Commit, arguments: dict[str, Any]) -> None:
        assert commit.source is not None
        source, position = commit.source
        asked = arguments["at"]
        patched = self.world.book(source, position if asked is None else min(asked, position))
        base = self.world.book(name, patched.base)
        assert base.birth == old.birth, "a branch was applied to a later change set with the name of its target"
        known = self._now(source, position)
        patch: Definitions = {}
        for id_ in patched.cells.keys() | base.cells.keys():
            here, theirs = patched.cells.get(id_), base.cells.get(id_)
            left = known.definitions.get(id_)
            assert here in (left, theirs) or theirs == left, f"{id_} was applied although it is in conflict"
            if here != theirs:
                patch[id_] = here
                assert book.cells.get(id_) == here, f"{id_} was not applied"
                before = old.cells.get(id_)
                assert before in (theirs, here), (
                    f"{id_} was overwritten, although the branch does not contain its definition"
                )
        for earlier in known.pending:
            for id_, taken in earlier.taken.items():
                if old.cells.get(id_) == taken != patched.cells.get(id_):
                    assert book.cells.get(id_) == patched.cells.get(id_), f"{id_} was not taken back"
        others = {id_ for id_ in book.cells.keys() | old.cells.keys() if id_ not in patch}
        assert all(book.cells.get(id_) == old.cells.get(id_) for id_ in others), (
            "a value was changed that the branch did not change"
        )
        if arguments["strict"]:
            assert book.cells == patched.cells, "after a strict apply, the target differs from the branch"
        if book.target is not None:
            assert old.conflicts == book.conflicts, "an apply settled a conflict"
            self._changed(name, commit.sequence)
        self._changed(source, commit.sequence).pending.append(Pending(position, commit.sequence, patch))

    def _check_revert(self, name: str, old: Book, book: Book, commit: Commit, arguments: dict[str, Any]) -> None:
        commits = self.world.commits(name, arguments["first"] - 1, min(arguments["last"], old.sequence))
        edits = [one for one in commits if one.kind in EDITS]
        for id_ in old.cells.keys() | book.cells.keys():
            touching = [one.sequence for one in edits if id_ in one.delta]
            first, last = (touching[0] - 1, touching[-1]) if touching else (old.sequence, old.sequence)
            stood, left = self.world.book(name, first).cells.get(id_), self.world.book(name, last).cells.get(id_)
            now = old.cells.get(id_)
            if stood == left:
                assert book.cells.get(id_) == now, f"{id_} was reverted although it had not changed"
            else:
                assert now in (stood, left), f"{id_} was reverted although it was edited again"
                assert book.cells.get(id_) == stood, f"{id_} was not reverted"
        if book.target is not None:
            assert old.conflicts == book.conflicts, "a revert settled a conflict"
            self._changed(name, commit.sequence)

    def _check_replay(self, name: str, old: Book, book: Book, commit: Commit, arguments: dict[str, Any]) -> None:
        del arguments
        assert commit.source is not None
        target, upto = commit.source
        agreed = self._changed(name, commit.sequence)
        seen = [one for one in agreed.pending if one.commit <= upto and target == old.target]
        for one in seen:
            agreed.definitions |= one.taken
            agreed.pending.remove(one)
        self._check_status(name, old, commit, seen)
        moved: set[str] = set()
        if target == old.target:
            assert self.world.book(target, upto).birth <= old.base, (
                "a branch replayed a later change set with the name of its target"
            )
            moved = {id_ for one in self.world.commits(target, old.base, upto) for id_ in one.delta}
        else:
            now, stood = self.world.book(target, upto).cells, self.world.book(str(old.target), old.base).cells
            moved = {id_ for id_ in now.keys() | stood.keys() if now.get(id_) != stood.get(id_)}
        theirs = self.world.book(target, upto).cells
        applied = {id_ for one in seen for id_ in one.taken}
        for id_ in theirs.keys() | old.cells.keys() | moved | old.conflicts.keys() | book.conflicts.keys():
            if id_ in moved or id_ in old.conflicts:
                told = id_ in old.conflicts and id_ not in applied
                self._check_replayed(id_, old, book, commit, agreed, theirs.get(id_), moved=id_ in moved, told=told)
            else:
                assert book.cells.get(id_) == old.cells.get(id_), f"{id_} was replayed although it had not changed"
                assert id_ not in book.conflicts, f"{id_} is in conflict although it did not change"

    def _check_replayed(
        self,
        id_: str,
        old: Book,
        book: Book,
        commit: Commit,
        agreed: Agreed,
        theirs: Any,
        *,
        moved: bool,
        told: bool,
    ) -> None:
        """Check one id of a replay. `theirs` is the target's definition; `moved` says whether the target defined the id
        after the old base; `told` says whether a conflict about the id was recorded that no apply has ended."""
        here, left, now = old.cells.get(id_), agreed.definitions.get(id_), book.cells.get(id_)
        if here == left:  # not edited
            assert now == theirs, f"{id_} was not replayed"
            assert id_ not in book.conflicts, f"{id_} is in conflict although the branch did not edit it"
            agreed.definitions[id_] = theirs
        elif commit.strategy == "theirs" and (theirs != left or id_ in old.conflicts):
            assert now == theirs, f"{id_} does not have the definition of the target"
            assert id_ not in book.conflicts, f"{id_} is still in conflict"
            agreed.definitions[id_] = theirs
        else:
            assert now == here, f"{id_} was overwritten although the branch had edited it"
            if commit.strategy == "ours" or theirs == here or (moved and theirs == left):
                assert id_ not in book.conflicts, f"{id_} is still in conflict"
                agreed.definitions[id_] = theirs
            elif moved:
                assert id_ in book.conflicts, f"{id_} is not in conflict"
                assert book.conflicts[id_].base == left, f"the conflict about {id_} has another base than {left}"
            else:
                assert (id_ in book.conflicts) == told

    def _check_status(self, name: str, old: Book, commit: Commit, seen: list[Pending]) -> None:
        """Check that the commit closes the branch as applied exactly if all of its own edits are applied."""
        assert commit.source is not None
        kept = {one.sequence for one in self.world.logs.get(commit.source[0], []) if one.keep}
        applies = [one for one in seen if one.commit not in kept and one.applied >= old.birth]
        done = False
        if applies:
            behind = self.world.commits(name, applies[-1].applied, old.sequence)
            own = [one for one in behind if (one.kind in EDITS and one.delta) or one.strategy != "record"]
            done = applies[-1] is seen[-1] and not own
        assert (commit.status == "applied") == done, "applied" if done else "not applied"
