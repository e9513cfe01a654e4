"""A model of branches on plain dictionaries, with the rules that the product has to follow.

A world holds change sets by name, each with a log. One counter numbers the commits of all logs, as one stream does. A
definition is any value, or None for an id without definition. Only `World` decides requests and folds commits;
`branch_checks` computes in another way what users expect, and compares.

Each rule has a name, and a world can be made to break some of the rules. A test breaks one rule after the other, and
checks that `branch_checks` notices each.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Literal

from tests.support.branch_books import RULES, Book, Commit, Conflict, Definition, Definitions, RefusedError, Strategy


class World:
    """All change sets. Its methods return the commit that they appended, or raise `RefusedError` and change nothing."""

    def __init__(self, broken: frozenset[str] = frozenset(), *, checkpoints: bool = True) -> None:
        assert broken <= RULES.keys()
        self.broken = broken
        self.checkpoints = checkpoints
        self.last = 0
        self.logs: dict[str, list[Commit]] = {}
        self.books: dict[str, list[Book]] = {}  # by name: a book for each commit
        self.queue: list[tuple[str, int, int]] = []  # branches to settle: name, sequence of the apply, applied position

    # -- reading ---------------------------------------------------------------------------------------------------

    def holds(self, rule: str) -> bool:
        assert rule in RULES
        return rule not in self.broken

    def book(self, name: str, at: int | None = None) -> Book:
        """Return the state at the end of the log, or at position `at`. Raises `RefusedError` if there is no such change
        set."""
        books = [book for book in self.books.get(name, []) if at is None or book.sequence <= at]
        if not books:
            raise RefusedError("no_such_change_set")
        return books[-1]

    def is_deleted(self, name: str) -> bool:
        return name in self.books and self.books[name][-1].status == "deleted"

    def commits(self, name: str, after: int, until: int) -> list[Commit]:
        return [commit for commit in self.logs[name] if after < commit.sequence <= until]

    # -- requests --------------------------------------------------------------------------------------------------

    def edit(self, name: str, delta: Definitions, at: int | None = None, *, batch: int | None = None) -> Commit:
        """Edit a change set. `at` is the position that the author has seen, None if the request states no position.

        `batch` is given if one commit of the product decides this and earlier requests: the newest commit before them.
        """
        book = self.book(name) if name in self.logs else Book()
        self._must_be_open(book)
        if book.protected:
            raise RefusedError("protected")
        settled: frozenset[str] = frozenset()
        if at is not None:
            defined = [
                book.edited.get(id_, 0) if id_ in book.cells else self._may_be_removed(name, book, id_, batch)
                for id_ in delta
            ]
            told = [book.conflicts[id_].told for id_ in delta if id_ in book.conflicts]
            if self.holds("edits see what came later") and max([book.birth, *defined, *told]) > at:
                raise RefusedError("moved")
        if at is not None or not self.holds("blind edits settle nothing"):
            settled = frozenset(delta) & book.conflicts.keys()
        return self._append(name, book, Commit(0, "edit", delta, self._before(book, delta), settled))

    def create(
        self, name: str, parent: str, at: int | None = None, *, sibling: bool = False, closed: bool = False
    ) -> Commit:
        """Create a branch of `parent`, or, with `sibling`, a branch of the target of `parent` with all changes of
        `parent`."""
        if name == parent:
            raise RefusedError("self")
        origin = self.book(parent, at)
        if origin.status == "deleted" or (sibling and origin.target in (None, name)):
            raise RefusedError("no_such_change_set")
        old = self.books[name][-1] if name in self.books else Book(status="deleted")
        if old.status != "deleted":
            raise RefusedError("exists")
        book = Book(cells=dict(origin.cells), edited=dict(origin.edited), taken={})
        book.target, book.base = (origin.target, origin.base) if sibling else (parent, origin.sequence)
        if sibling:
            book.changes, book.conflicts = dict(origin.changes), dict(origin.conflicts)
        if not self.holds("a create begins a log"):
            book.changes |= old.changes
            book.conflicts |= old.conflicts
        book.birth = book.own = book.last_edit = self.last + 1
        book.status = "kept" if closed else "open"
        return self._append(name, book, Commit(0, "create", source=(parent, origin.sequence)))

    def rebase(
        self,
        name: str,
        strategy: Strategy = "record",
        upto: int | None = None,
        *,
        onto: bool = False,
        anyway: bool = False,
    ) -> Commit:
        """Replay the target's commits up to `upto`. `onto` moves the branch to the target of its target, which must be
        closed; `upto` is then a position of the new target.

        With `anyway`, replay even if the target has no new commit: in the product, it may have a commit that only
        refused requests.
        """
        book = self.book(name)
        self._must_be_open(book)
        if book.target is None or book.protected:
            raise RefusedError("no_target" if book.target is None else "protected")
        target, source = book.target, self.book(book.target, None if onto else upto)
        if onto:
            if source.status == "open" or source.target in (None, name):
                raise RefusedError("target_is_open")
            target = str(source.target)
            source = self.book(target, upto)
        elif self.holds("a name made anew is another set") and source.birth > book.base:
            raise RefusedError("moved")
        if source.status == "deleted":
            raise RefusedError("deleted")
        behind = source.sequence - book.base
        if not onto and (behind < 0 or (behind == 0 and strategy == "record" and not anyway)):
            raise RefusedError("nothing_new")
        if onto:
            ids = book.cells.keys() | source.cells.keys() | book.changes.keys()
            theirs = {id_: source.cells.get(id_) for id_ in ids if book.theirs(id_) != source.cells.get(id_)}
            apply = None
        else:
            commits = self.commits(target, book.base, source.sequence)
            theirs = {id_: definition for commit in commits for id_, definition in commit.delta.items()}
            apply = self._own_apply(name, book, commits)
        commit = self._merge_theirs(name, book, theirs, strategy, apply)
        if apply is not None and not apply.keep and self._all_applied(book, apply):
            commit = replace(commit, status="applied")
        changed = replace(deepcopy(book), target=target)
        if self.holds("a base moves with its commit"):
            changed.base = source.sequence
        return self._append(name, changed, replace(commit, source=(target, source.sequence), strategy=strategy))

    def apply(
        self, name: str, source: str, at: int | None = None, *, strict: bool = False, keep: bool = False
    ) -> Commit:
        """Apply the changes of the branch `source`, as of position `at`."""
        book, now = self.book(name), self.book(source)
        self._must_be_open(book)
        self._must_be_open(now)
        named = self.book(source, at)
        patched = named if self.holds("an apply is read at its position") else now
        if named.birth != now.birth:
            raise RefusedError("purged")
        if patched.target != name:
            raise RefusedError("not_its_target")
        if patched.conflicts and self.holds("conflicts are not applied"):
            raise RefusedError("unresolved")
        if self.holds("a name made anew is another set") and book.birth > patched.base:
            raise RefusedError("moved")
        if self.holds("a source is rebased between applies") and book.taken.get(source, 0) > patched.base:
            raise RefusedError("behind")
        if strict and self.holds("strict means unmoved") and book.last_edit > patched.base:
            raise RefusedError("moved")
        patch = {id_: (base, patched.cells.get(id_)) for id_, base in patched.changes.items()}
        delta = self._patched(book, patch, whole=self.holds("applies meet what they expect"))
        changed = deepcopy(book)
        changed.taken[source] = self.last + 1
        before = self._before(book, delta)
        commit = self._append(
            name, changed, Commit(0, "apply", delta, before, source=(source, named.sequence), keep=keep)
        )
        self.queue.append((source, commit.sequence, named.sequence))
        return commit

    def settle(self) -> Commit:
        """Take the oldest request from the queue: the branch replays its target up to the commit that applied the
        branch."""
        if not self.queue:
            raise RefusedError("nothing_new")
        name, upto, position = self.queue.pop(0)
        if self.holds("a name made anew is another set") and self.book(name).birth > position:
            raise RefusedError("nothing_new")
        return self.rebase(name, upto=upto)

    def revert(self, name: str, first: int, last: int, *, of: str | None = None) -> Commit:
        """Revert the edits of the commits `first` to `last` of the change set's own log, or of the log of its target
        `of`. Replayed edits of the target of that log stay."""
        book = self.book(name)
        self._must_be_open(book)
        if book.protected:
            raise RefusedError("protected")
        if of is not None and of != book.target:
            raise RefusedError("not_its_target")
        if of is not None and last > book.base:
            raise RefusedError("moved")
        if first <= (book if of is None else self.book(of, book.base)).birth:
            raise RefusedError("before_creation")
        stood: Definitions = {}
        left: Definitions = {}
        for commit in self.commits(of or name, first - 1, last):
            if commit.kind == "replay":
                continue
            stood = {**commit.before, **stood}
            left |= commit.delta
        delta = self._patched(book, {id_: (after, stood[id_]) for id_, after in left.items()})
        return self._append(name, book, Commit(0, "revert", delta, self._before(book, delta)))

    def mark(
        self,
        name: str,
        status: Literal["open", "abandoned", "deleted"] | None = None,
        protected: bool | None = None,
    ) -> Commit:
        """Close, open, delete or protect a change set."""
        book = self.book(name)
        if book.status == "deleted" or (status == "deleted" and book.protected):
            raise RefusedError("deleted" if book.status == "deleted" else "protected")
        if status == "deleted" and self.holds("a create begins a log"):
            book = Book(birth=self.last + 1, target=book.target)
        return self._append(name, book, Commit(0, "mark", status=status, protected=protected))

    def undelete(self, name: str) -> Commit:
        """Restore a deleted change set to its state before the deletion."""
        book = next(book for book in reversed(self.books[name]) if book.status != "deleted")
        return self._append(name, book, Commit(0, "mark", status="open"))

    def checkpoint(self, name: str) -> None:
        """Drop what a checkpoint does not store: changes that equal their base. No result may depend on these."""
        if self.checkpoints:
            book = self.book(name)
            book.changes = {id_: base for id_, base in book.changes.items() if base != book.cells.get(id_)}

    # -- deciding --------------------------------------------------------------------------------------------------

    def _must_be_open(self, book: Book) -> None:
        if book.status == "deleted" or (book.status != "open" and self.holds("a closed set takes no edit")):
            raise RefusedError("closed" if book.status != "deleted" else "deleted")

    def _patched(
        self, book: Book, patch: Mapping[str, tuple[Definition, Definition]], *, whole: bool = True
    ) -> Definitions:
        """Return the edits that apply `patch`, which has, by id, the definition that is expected and the one to set.
        Unless `whole` is false, raise `RefusedError` if another definition than the expected one is present."""
        present = {id_: book.cells.get(id_) for id_ in patch}
        wanted = {id_: both for id_, both in patch.items() if both[1] not in (both[0], present[id_])}
        conflicts = {
            id_: (base, present[id_], theirs) for id_, (base, theirs) in wanted.items() if present[id_] != base
        }
        if conflicts and whole:
            raise RefusedError("conflicts", conflicts)
        return {id_: theirs for id_, (_, theirs) in wanted.items()}

    def _may_be_removed(self, name: str, book: Book, id_: str, batch: int | None) -> int:
        """Return the last commit that may have removed `id_`, which does not exist. No state says which commit removed
        a value, but within a batch this is known."""
        if batch is None or name not in self.logs:
            return book.last_edit
        before = [one.last_edit for one in self.books[name] if one.sequence <= batch]
        return max(
            [*before[-1:], *(one.sequence for one in self.commits(name, batch, self.last) if id_ in one.delta)],
            default=0,
        )

    def _before(self, book: Book, delta: Mapping[str, Definition]) -> Definitions:
        if not self.holds("what stood before is taken before"):
            return dict(delta)
        return {id_: book.cells.get(id_) for id_ in delta}

    def _own_apply(self, name: str, book: Book, commits: list[Commit]) -> Commit | None:
        """Return the newest of `commits` that applied this branch; None if that commit applied an earlier branch of
        this name."""
        for commit in reversed(commits):
            if commit.kind == "apply" and commit.source is not None and commit.source[0] == name:
                own = commit.source[1] >= book.birth or not self.holds("a name made anew is another set")
                return commit if own else None
        return None

    def _all_applied(self, book: Book, apply: Commit) -> bool:
        assert apply.source is not None
        return book.own <= apply.source[1] or not self.holds("applied means all of it")

    def _merge_theirs(
        self, name: str, book: Book, theirs: Definitions, strategy: Strategy, apply: Commit | None
    ) -> Commit:
        """Merge the definitions that the target has now (`theirs`) into the branch, based on the definitions that both
        had."""
        agreed: Definitions = {}
        if apply is not None and self.holds("own applies are agreed"):
            assert apply.source is not None
            patched = self.book(name, apply.source[1])
            ids = [id_ for id_, base in patched.changes.items() if base != patched.cells.get(id_)]
            agreed = {id_: patched.cells.get(id_) for id_ in ids}
        theirs = dict(theirs)
        if self.holds("theirs takes conflicts"):
            for id_, conflict in book.conflicts.items():
                untouched = book.cells.get(id_) == conflict.base and self.holds("equal to its base is not edited")
                level = book.cells.get(id_) == book.theirs(id_)
                if strategy != "record" or untouched or level or id_ in agreed:
                    theirs.setdefault(id_, book.theirs(id_))
        commit = Commit(0, "replay")
        for id_, their in theirs.items():
            # The target took the definition at the applied position, which ends an older conflict about the id.
            here, known = book.cells.get(id_), None if id_ in agreed else book.conflicts.get(id_)
            base = agreed[id_] if id_ in agreed else book.theirs(id_)
            if self._unedited(book, id_, base if known is None else known.base):
                (commit.delta if their != here else commit.bases)[id_] = their
            elif their == here:
                commit.bases[id_] = their
            elif strategy == "theirs" and (their != base or known):
                commit.delta[id_] = their
            elif strategy == "ours" or (id_ in agreed and their == base):
                commit.bases[id_] = their
            elif their != base:
                commit.bases[id_] = their
                left = base if known is None or not self.holds("conflicts outlive replays") else known.base
                if their != left or not self.holds("a conflict ends when its sides agree"):
                    commit.conflicts[id_] = left
        return replace(commit, before=self._before(book, commit.delta))

    def _unedited(self, book: Book, id_: str, base: Definition) -> bool:
        if not self.holds("equal to its base is not edited"):
            return id_ not in book.changes
        return book.cells.get(id_) == base

    # -- folding ---------------------------------------------------------------------------------------------------

    def _append(self, name: str, book: Book, commit: Commit) -> Commit:
        """Append `commit` to the log of `name`, whose state before the commit is `book`."""
        self.last += 1
        commit = replace(commit, sequence=self.last)
        book = deepcopy(book)
        book.birth = book.birth or self.last
        book.sequence = self.last
        if commit.kind == "replay":
            self._fold_replay(book, commit)
        elif commit.kind in ("edit", "apply", "revert"):
            self._fold_edit(book, commit)
        if commit.status is not None:
            book.status = commit.status
        if commit.protected is not None:
            book.protected = commit.protected
        self.logs.setdefault(name, []).append(commit)
        self.books.setdefault(name, []).append(book)
        return commit

    def _fold_edit(self, book: Book, commit: Commit) -> None:
        for id_ in commit.delta if book.target is not None else ():
            if not self.holds("the first change keeps the base"):
                book.changes[id_] = commit.before[id_]
            book.changes.setdefault(id_, commit.before[id_])
            if id_ in commit.settled:
                book.conflicts.pop(id_, None)
        self._fold_delta(book, commit)
        book.own = commit.sequence if commit.delta else book.own

    def _fold_replay(self, book: Book, commit: Commit) -> None:
        self._fold_delta(book, commit)
        for id_ in commit.delta:
            book.changes.pop(id_, None)
            if self.holds("taken ids leave conflicts"):
                book.conflicts.pop(id_, None)
        for id_, their in commit.bases.items():
            book.changes[id_] = their
            if their == book.cells.get(id_):
                del book.changes[id_]
            if id_ in commit.conflicts:
                book.conflicts[id_] = Conflict(commit.conflicts[id_], commit.sequence)
            else:
                book.conflicts.pop(id_, None)
        if commit.strategy != "record":
            book.own = commit.sequence

    def _fold_delta(self, book: Book, commit: Commit) -> None:
        for id_, definition in commit.delta.items():
            if definition is None:
                book.cells.pop(id_, None)
                book.edited.pop(id_, None)
            else:
                book.cells[id_] = definition
                book.edited[id_] = commit.sequence
        if commit.delta:
            book.last_edit = commit.sequence
