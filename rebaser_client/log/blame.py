"""Finds who last defined values, even if the definitions were copied from other change sets.

An apply copies definitions from a branch into its target, and a rebase copies them from the target into a branch. Such
a commit names the other change set and the position that was read, so the search continues there until it finds the
edit itself.

Invariant: unknown facts are never guessed. If the history of the other change set cannot be read, the result is the
commit that copied the definition, with the reason.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from anyio import to_thread

from rebaser_client.cooperative import cooperate
from rebaser_client.log.changes import Definition, LogEntry, by_request
from rebaser_client.log.commits import LASTING_CODES, CommitReader
from rebaser_client.log.positions import At
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.branches.merge import same_definition
from rebaser_core.commit import Authorship, Commit, Decision, Kind, Outcome, Source
from rebaser_core.errors import TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.explain.upstream import newest_upstream
from rebaser_core.ids import ChangeSetKey

if TYPE_CHECKING:
    from rebaser_client.log.reader import StateLoader
    from rebaser_core.state.change_set import ChangeSetState

MAX_COPIES = 64  # copies of a definition that are followed; each was made by an apply or a rebase
UNRECORDED = "the servers recorded no history when the value was defined"


@dataclass(frozen=True, slots=True)
class Copied:
    """A commit that copied the definition of a value: it applied a branch, or rebased a branch onto its target.

    `change_set` is the change set whose log contains the commit `entry`. `entry.commit.source` is the change set from
    which the definition was copied, with the position that was read.
    """

    change_set: str
    entry: LogEntry

    @property
    def request(self) -> tuple[Decision, Authorship] | None:
        """The request to apply or rebase the branch; None if a server rebased the branch automatically."""
        return self.entry.requests[0] if self.entry.requests else None


@dataclass(frozen=True, slots=True)
class Blame:
    """The commit and the request that last defined the value `id`.

    `sequence` is the log sequence of the commit, or 0 if it is unknown. `change_set` is the change set whose log
    contains the commit: another one than the caller named if the value was inherited or copied from there, or empty if
    it is unknown. `entry` is the commit, and `request` is the decision and the author of the request. Both are None if
    the commit can no longer be read.

    `copies` are the commits that copied the definition from one change set to the next, the newest first.

    `lost` says why the search ended early; it is empty if the edit itself was found. If `lost` is not empty and `entry`
    is a commit that copied the definition, the history from which it copied can no longer be read.
    """

    id: str
    sequence: int
    definition: Definition
    entry: LogEntry | None = None
    request: tuple[Decision, Authorship] | None = None
    change_set: str = ""
    copies: tuple[Copied, ...] = ()
    lost: str = ""


_Edits: TypeAlias = tuple[ChangeSetKey, LogEntry, Mapping[str, tuple[Decision, Authorship]] | None]
"""A commit, the change set whose log contains it, and for each value the last of its requests that edited the value.

The third item is None if it is clear without reading the edits which request made all of them."""

_Found: TypeAlias = dict[int, _Edits | UnprocessableError]
"""What was read so far, by log sequence, because one commit may have defined many values: a commit, or the error that
says that it was purged."""


class BlameReader:
    """Finds who last defined values. `commits` reads commits, and `loader` is a function that returns a
    `StateLoader`."""

    def __init__(self, commits: CommitReader, loader: Callable[[], Awaitable["StateLoader"]]) -> None:
        self._commits = commits
        self._loader = loader

    async def blame(
        self, key: ChangeSetKey, ids: Iterable[str], at: At | None = None, *, deep: bool = False
    ) -> dict[str, Blame]:
        """Return who last defined each of `ids` that exists at the position `at`, by id.

        If `deep` is true, the result for an id is about the value that was defined last among this value and all values
        on which it depends. For this, the whole state is read.
        """
        wanted = list(dict.fromkeys(ids))
        loader = await self._loader()
        if not deep:
            return await self.find(key, await loader.load_values(key, wanted, at, stale=False), wanted)
        state = (await loader.load(key, at)).state
        newest = await to_thread.run_sync(newest_upstream, state, wanted)
        found = await self.find(key, state, dict.fromkeys(newest.values()))
        return {id_: found[one] for id_, one in newest.items()}

    async def find(self, key: ChangeSetKey, state: "ChangeSetState", ids: Iterable[str]) -> dict[str, Blame]:
        """Return who last defined each of `ids` that exists in `state`, a state of `key`, by id."""
        edits: _Found = {}
        found: dict[str, Blame] = {}
        for id_ in ids:
            await cooperate()
            if (one := await self._last_edit(key, state, id_, edits)) is not None:
                found[id_] = one
        for _ in range(MAX_COPIES):
            copied: defaultdict[tuple[str, int], dict[str, Blame]] = defaultdict(dict)
            for id_, one in found.items():
                if (source := _source(one)) is not None:
                    copied[source.change_set, source.sequence][id_] = one
            if not copied:
                return found
            for (name, sequence), blames in copied.items():
                found |= await self._follow(key.beside(name), sequence, blames, edits)
        reason = f"more than {MAX_COPIES} applies and rebases have copied the definition"
        return {id_: one if _source(one) is None else replace(one, lost=reason) for id_, one in found.items()}

    async def _follow(
        self, key: ChangeSetKey, sequence: int, blames: Mapping[str, Blame], edits: _Found
    ) -> dict[str, Blame]:
        """Continue with `blames`, whose commits copied definitions from `key` at log sequence `sequence`."""
        try:
            return await self._earlier(key, sequence, blames, edits)
        except TransientError as error:
            if error.code not in LASTING_CODES:
                raise
            reason = error.message
        except (UnprocessableError, UnsupportedVersion, NotAllowed) as error:
            reason = error.message
        return {id_: replace(one, lost=reason) for id_, one in blames.items()}

    async def _earlier(
        self, key: ChangeSetKey, sequence: int, blames: Mapping[str, Blame], edits: _Found
    ) -> dict[str, Blame]:
        if await self._commits.key_of(key, sequence) != key:
            raise UnprocessableError(f"commit {sequence} is not in the log of {key.workspace}/{key.change_set}")
        state = await (await self._loader()).load_values(key, list(blames), sequence, stale=False)
        found: dict[str, Blame] = {}
        for id_, one in blames.items():
            await cooperate()
            found[id_] = _joined(one, key, sequence, await self._last_edit(key, state, id_, edits))
        return found

    async def _last_edit(self, key: ChangeSetKey, state: "ChangeSetState", id_: str, edits: _Found) -> Blame | None:
        """Return the commit that gave the value `id_` its definition in `state`, a state of `key`. Return None if the
        value does not exist. The commit may have copied the definition."""
        definition = state.cells.edit_of(id_) if id_ in state.cells else None
        if definition is None:
            return None
        sequence = state.cells.edited(id_)
        found = Blame(id_, sequence, definition)  # type: ignore[arg-type] # an existing value has no `Remove`
        if not sequence:
            return replace(found, lost=UNRECORDED)
        inherited = state.branch is not None and sequence < state.branch.birth
        if (read := edits.get(sequence)) is None:
            try:
                read = await self._edits(key, sequence, inherited=inherited)
            except UnprocessableError as error:  # the commit was purged
                read = error
            edits[sequence] = read
        if isinstance(read, UnprocessableError):
            return replace(found, change_set="" if inherited else key.change_set, lost=read.message)
        of, entry, made = read
        request = _only(entry.commit, entry) if made is None else made.get(id_)
        return replace(found, entry=entry, change_set=of.change_set, request=request)

    async def _edits(self, key: ChangeSetKey, sequence: int, *, inherited: bool) -> _Edits:
        """Return the commit `sequence`, which defined a value of `key`. If `inherited` is true, it may be in the log of
        another change set.

        If a single request made its edits, the edits are not read, because there may be many.
        """
        of = await self._commits.key_of(key, sequence) if inherited else key
        commit = await self._commits.commit_at(of, sequence)
        if commit is None or commit.sequence != sequence:
            raise await self._commits.purged(of, sequence)
        entry = LogEntry.of(commit)
        if commit.source is not None or _only(commit, entry) is not None:
            return of, entry, None
        requests = by_request(LogEntry.of(await self._commits.with_delta(commit)))
        return of, entry, {change.id: (one.decision, one.author) for one in requests for change in one.changes}


def _source(blame: Blame) -> Source | None:
    """Return the change set and the position from which the commit of `blame` copied the definition. Return None if the
    search has ended there."""
    return None if blame.lost or blame.entry is None else blame.entry.commit.source


def _only(commit: Commit, entry: LogEntry) -> tuple[Decision, Authorship] | None:
    """Return the request that made all edits of a commit; None if several requests made them, or none did."""
    if commit.source is not None:  # a request to apply or to rebase a branch is alone in its commit
        return entry.requests[0] if entry.requests else None
    if commit.kind is not Kind.REBASE:
        return None
    made = [one for one in entry.requests if one[0].outcome is Outcome.SUCCESS and one[0].performed]
    return made[0] if len(made) == 1 else None


def _joined(copy: Blame, key: ChangeSetKey, sequence: int, earlier: Blame | None) -> Blame:
    """Return `earlier`, who last defined a value in `key` as of log sequence `sequence`, with the commit `copy` that
    copied this definition from there. If that is not certain, return `copy` with the reason."""
    place = f"{key.workspace}/{key.change_set}@{sequence}"
    if earlier is None or not same_definition(earlier.definition, copy.definition):
        return replace(copy, lost=f"{place} does not have the definition that was copied from there")
    if not earlier.sequence:
        return replace(copy, lost=f"{place}: {earlier.lost}")
    assert copy.entry is not None  # noqa: S101 - a commit that copied a definition was read
    return replace(earlier, copies=(*copy.copies, Copied(copy.change_set, copy.entry)))
