"""The history of a change set, read from its log: who changed what, and what each change replaced.

`LogHistory` reads the history, and returns the dataclasses below. It reads commits from the newest to the oldest, only
as far as the caller iterates. States, which need NumPy, are loaded only by `status`, and by `diff` if commits were
purged or do not record what they replaced.

Invariant: unknown facts are never guessed. Commits of older releases do not record the definitions that they replaced.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from anyio import to_thread

from rebaser_client.cooperative import cooperate
from rebaser_client.log.commits import CommitReader, replaces_values
from rebaser_client.log.origins import source_of
from rebaser_client.log.positions import At, at_text
from rebaser_client.notebook import definition_text, html_table, value_text
from rebaser_core.branches.merge import same_definition
from rebaser_core.commit import Authorship, Commit, Computed, Decision, Kind, Outcome, Reverts
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from rebaser_core.values import Value, canonical

if TYPE_CHECKING:
    from rebaser_client.log.reader import StateLoader
    from rebaser_core.state.change_set import ChangeSetState

Definition: TypeAlias = Set | Derive | Unset
"""The definition of a value. Where None is allowed instead, None means that the value does not exist."""

MovedValue: TypeAlias = tuple[str, Value, Value]
"""A derived value that differs between two states although its definition is the same: its id, and both values."""

NOBODY = Authorship()


class HasId(Protocol):
    """An item with the id of a value."""

    @property
    def id(self) -> str: ...


C = TypeVar("C", bound=HasId)


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """The size of the history of a change set, and its oldest readable position.

    - `commits`: the number of messages in the log. `bytes`: the size of the log with its blobs, counted as in
      `rebaser_core.history.Mark`.
    - `oldest` and `since`: the log sequence of the oldest readable position, and the time when its commit was stored;
      both are None for an empty log.
    - `protected`: whether the change set refuses edits.
    - `taken`: the branches that were applied to the change set, each with the log sequence of the newest commit that
      applied it, in the order of these sequences.
    - `checkpoint_blobs` and `checkpoint_bytes`: the number of blobs in the newest checkpoint, and their size. The
      change set may share these blobs with other change sets.
    """

    commits: int
    bytes: int
    oldest: int | None
    since: datetime | None
    protected: bool = False
    taken: tuple[tuple[str, int], ...] = ()
    checkpoint_blobs: int = 0
    checkpoint_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit in the log. `time` is the time at which a server made the commit.

    `requests` contains the decision of each request of the commit, with the author and message of the request. `commit`
    is the whole commit, but its delta is not always loaded.
    """

    sequence: int
    time: datetime
    kind: Kind
    requests: tuple[tuple[Decision, Authorship], ...]
    reverts: Reverts | None
    commit: Commit

    @classmethod
    def of(cls, commit: Commit) -> "LogEntry":
        authors = commit.authors or (NOBODY,) * len(commit.requests)
        time = datetime.fromtimestamp(commit.at_ms / 1000, UTC)
        requests = tuple(zip(commit.requests, authors, strict=True))
        return cls(commit.sequence, time, commit.kind, requests, commit.reverts, commit)

    def _repr_html_(self) -> str:
        rows = (
            (decision.request_id, decision.outcome.value, decision.performed, author.author, author.message)
            for decision, author in self.requests
        )
        caption = f"commit {self.sequence} ({self.kind.value}), {self.time:%Y-%m-%d %H:%M:%S} UTC"
        head = "request", "outcome", "updates", "author", "message"
        return html_table(caption, head, rows, len(self.requests))


@dataclass(frozen=True, slots=True)
class Change:
    """The change of the definition of `id` by a request, or by all commits between two positions.

    `before` is None if the value did not exist before the change, and `after` is None if it does not exist after the
    change. If `known` is false, `before` is unknown.
    """

    id: str
    before: Definition | None
    after: Definition | None
    known: bool = True


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """A request of a commit, with the changes that it made. `changes` is empty if the request changed nothing."""

    decision: Decision
    author: Authorship
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ShownCommit:
    """A commit with its changes: edits by `requests`, or the results of an update of derived values."""

    entry: LogEntry
    requests: tuple[ShownRequest, ...]
    computed: tuple[Computed, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """The difference between two states. `first` and `last` are the log sequences of the commits that were compared.

    `changes` are the definitions that differ, by id. `derived` are the derived values that differ although their
    definitions are the same, as (id, value before, value after).
    """

    first: int
    last: int
    changes: tuple[Change, ...]
    derived: tuple[MovedValue, ...] = ()

    def _repr_html_(self) -> str:
        changes = (
            (one.id, definition_text(one.before) if one.known else "unknown", definition_text(one.after))
            for one in self.changes
        )
        moved = ((id_, value_text(before), value_text(after)) for id_, before, after in self.derived)
        caption = f"{len(self.changes):,} definitions and {len(self.derived):,} derived values differ"
        head = "id", f"at {self.first}", f"at {self.last}"
        return html_table(caption, head, chain(changes, moved), len(self.changes) + len(self.derived))


class LogHistory:
    """Reads the history of change sets. `commits` reads the commits of a change set, and `loader` is a function that
    returns a `StateLoader`."""

    def __init__(self, commits: CommitReader, loader: Callable[[], Awaitable["StateLoader"]]) -> None:
        self._commits = commits
        self._loader = loader
        self._kept: tuple[tuple[ChangeSetKey, ChangeSetKey, bool], Diff] | None = None

    async def log(
        self, key: ChangeSetKey, id_: str | None = None, *, at: At | None = None
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield the commits of `key`, newest first, from the position `at` (None: the newest commit) to the oldest.

        If `id_` is given, only commits that define or remove this value are yielded, with their deltas. They end where
        the change set was created: older commits are those of an earlier change set of this name.
        """
        async with aclosing(self._commits.back(key, at)) as commits:
            async for commit in commits:
                if id_ is None:
                    yield LogEntry.of(commit)
                elif commit.kind is Kind.CREATE:
                    break
                elif commit.has_edits:
                    loaded = await self._commits.with_delta(commit)
                    if any(update.id == id_ for update in loaded.delta):
                        yield LogEntry.of(loaded)
                await cooperate()

    async def show(self, key: ChangeSetKey, at: At | None = None) -> ShownCommit:
        """Return the newest commit at or before the position `at`, with its changes.

        Raise `PositionPurged` if the commit is no longer readable, and `UnprocessableError`, with code
        `no_such_position`, if there was no commit at or before the position.
        """
        commit = await self._commits.commit_at(key, at)
        if commit is None:
            name = f"{key.workspace}/{key.change_set}"
            text = f"{name} has no commits" if at is None else f"{name} had no commit at {at_text(at)}"
            raise UnprocessableError(text, code="no_such_position")
        commit = await self._commits.with_before(await self._commits.with_delta(commit))
        entry = LogEntry.of(commit)
        if commit.kind is Kind.DVU:
            return ShownCommit(entry, (), tuple(commit.delta))  # type: ignore[arg-type] # a DVU's delta has results
        return ShownCommit(entry, tuple(by_request(entry)), ())

    async def status(self, key: ChangeSetKey) -> HistoryStatus:
        """Return the size of the history of `key`, and its oldest readable position. No values are read."""
        commits = await self._commits.count(key)
        oldest = await self._commits.oldest_readable(key)
        loaded = await (await self._loader()).load_head(key)
        state, chain = loaded.state, loaded.chain
        purged = [mark.weight for mark in state.marks if oldest is not None and mark.named <= oldest[0]]
        size = state.weight - (purged[-1] if purged else 0)
        first, since = (None, None) if oldest is None else oldest
        taken = tuple(sorted(state.taken.items(), key=lambda one: one[1]))
        return HistoryStatus(
            commits, size, first, since, state.protected, taken, len(chain.base + chain.deltas), chain.size
        )

    async def diff_page(
        self,
        key: ChangeSetKey,
        at: At | None,
        other: ChangeSetKey,
        other_at: At | None,
        *,
        derived: bool,
        after: str,
        limit: int | None,
    ) -> Diff:
        """Return a page of the result of `diff`; see `page_of`.

        If the difference is read in pages, it is cached, and replaces the one that was cached earlier. Later pages are
        taken from it as long as both positions are the same.
        """
        check_limit(limit)
        found: Diff | None = None
        if after and self._kept is not None and self._kept[0] == (key, other, derived):
            found = self._kept[1]  # another call may replace it during the reads
            places = [await source_of(self._commits, *end) for end in ((key, at), (other, other_at))]
            ends = [await self._commits.newest_message(*place) for place in places]
            if [0 if end is None else end.sequence for end in ends] != [found.first, found.last]:
                found = None
        if found is None:
            found = await self.diff(key, at, other, other_at, derived=derived)
        if after or limit is not None:
            self._kept = (key, other, derived), found
        changes, moved = page_of(found.changes, found.derived, after, limit)
        return replace(found, changes=changes, derived=moved)

    async def diff(
        self,
        key: ChangeSetKey,
        at: At | None,
        other: ChangeSetKey,
        other_at: At | None,
        *,
        derived: bool = False,
    ) -> Diff:
        """Compare the state of `key` at the position `at` with the state of `other` at the position `other_at`.

        To compare two positions of one log, the commits between them are read. If a commit does not record the
        definitions that it replaced, or if `derived` is true, both states are loaded instead.
        """
        if key == other and not derived and (diff := await self._between(key, at, other_at)) is not None:
            return diff
        one = (await (await self._loader()).load(key, at)).state
        two = (await (await self._loader()).load(other, other_at)).state
        return await to_thread.run_sync(_compare, one, two, derived)

    async def _between(self, key: ChangeSetKey, at: At | None, other_at: At | None) -> Diff | None:
        """Return the net effect of the commits between two positions.

        Return None if the positions are in the logs of different change sets, or if a commit was purged, does not
        record the definitions that it replaced, or may replace all values.
        """
        place, other = await source_of(self._commits, key, at), await source_of(self._commits, key, other_at)
        if place[0] != other[0]:
            return None
        key = place[0]
        ends = [await self._commits.newest_message(*each) for each in (place, other)]
        first, last = [0 if end is None else end.sequence for end in ends]
        low, high = min(first, last), max(first, last)
        before: dict[str, Definition | None] = {}
        after: dict[str, Definition | None] = {}
        async with aclosing(self._commits.back(key, high)) as commits:
            async for commit in commits:
                if commit.sequence <= low:
                    break
                if replaces_values(commit):
                    return None
                if commit.has_edits:
                    loaded = await self._commits.with_before(await self._commits.with_delta(commit))
                    if loaded.before is None:
                        return None
                    stood = {update.id: update for update in loaded.before}
                    for id_, standing in _last(loaded.delta).items():  # type: ignore[arg-type] # this delta has edits
                        after.setdefault(id_, standing)
                        before[id_] = stood.get(id_)  # type: ignore[assignment] # `stood` contains no `Remove`
                await cooperate()
            else:
                if low:  # the log begins after `low`
                    return None
        if first > last:
            before, after = after, before
        changes = (Change(id_, before[id_], after[id_]) for id_ in sorted(before))
        return Diff(
            first, last, tuple(change for change in changes if not same_definition(change.before, change.after))
        )


def _last(delta: Sequence[Update]) -> Mapping[str, Definition | None]:
    """Return the last definition of each value in `delta`, by id; None for a value that is removed."""
    return {update.id: None if isinstance(update, Remove) else update for update in delta}


def by_request(entry: LogEntry) -> Iterator[ShownRequest]:
    """Yield each request of a commit with edits, with its changes. The delta of the commit has to be loaded."""
    commit = entry.commit
    known = commit.before is not None
    standing: dict[str, Any] = {update.id: update for update in commit.before or ()}
    seen: set[str] = set()
    place = 0
    for decision, author in entry.requests:
        count = decision.performed if decision.outcome is Outcome.SUCCESS else 0
        left = _last(commit.delta[place : place + count])  # type: ignore[arg-type] # this delta has edits
        place += count
        changes = []
        for id_, after in left.items():
            changes.append(Change(id_, standing.get(id_), after, known or id_ in seen))
            standing[id_] = after
        seen.update(left)
        yield ShownRequest(decision, author, tuple(changes))


def _compare(one: "ChangeSetState", two: "ChangeSetState", derived: bool) -> Diff:
    changes: list[Change] = []
    for id_ in sorted({*one.cells, *two.cells}):
        before, after = [state.cells.edit_of(id_) if id_ in state.cells else None for state in (one, two)]
        if not same_definition(before, after):
            changes.append(Change(id_, before, after))  # type: ignore[arg-type] # an existing value has no `Remove`
    return Diff(one.last, two.last, tuple(changes), moved_values(one, two) if derived else ())


def check_limit(limit: int | None) -> None:
    """Raise `UnprocessableError` if `limit` is not a number of items on a page."""
    if limit is not None and limit < 1:
        raise UnprocessableError(f"limit must be at least 1, not {limit}", code="invalid_argument")


def page_of(
    changes: Sequence[C], derived: Sequence[MovedValue], after: str, limit: int | None
) -> tuple[tuple[C, ...], tuple[MovedValue, ...]]:
    """Return a page of two lists that are sorted by id: of both together, the first `limit` items whose ids are greater
    than `after`. None as `limit` means all of them."""
    first = bisect_right(changes, after, key=lambda one: one.id), bisect_right(derived, after, key=lambda one: one[0])
    if limit is None:
        return tuple(changes[first[0] :]), tuple(derived[first[1] :])
    found, moved = changes[first[0] : first[0] + limit], derived[first[1] : first[1] + limit]
    kept = set(sorted([*(one.id for one in found), *(one[0] for one in moved)])[:limit])
    return tuple(one for one in found if one.id in kept), tuple(one for one in moved if one[0] in kept)


def moved_values(one: "ChangeSetState", two: "ChangeSetState") -> tuple[MovedValue, ...]:
    """Return the derived values that differ although both states have the same definition of them, sorted by id."""
    moved: list[MovedValue] = []
    stale = one.stale(), two.stale()
    for id_ in sorted(two.cells.keys() & one.cells.keys()):
        after = two.cells.edit_of(id_)
        if isinstance(after, Derive) and same_definition(one.cells.edit_of(id_), after):
            was, is_ = one.value(id_, stale[0]), two.value(id_, stale[1])
            if was is not None and is_ is not None and _shown(was) != _shown(is_):
                moved.append((id_, was, is_))
    return tuple(moved)


def _shown(value: Value) -> object:
    return value.state, value.error, canonical(value.value)
