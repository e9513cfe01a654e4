"""Reads the commits that a request reverts, and builds the patch that undoes them.

Invariant: no patch is built unless all commits of the range are in the log, and each of them records the definitions
that it replaced.
"""

from rebaser.change_set.readers.offer_reader import birth_of
from rebaser.runtime.context import Context
from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import OrderedConsumer
from rebaser_core.branches.branch import Branch
from rebaser_core.branches.merge import NetEffect, PatchEntry
from rebaser_core.commit import Commit, Kind, Outcome, Reverts
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Remove, Update

MAX_BYTES = 128 * 1024 * 1024  # maximum bytes of the commits and blobs that one request may revert


async def read_own_patch(
    context: Context, key: ChangeSetKey, reverts: Reverts, state: ChangeSetState
) -> tuple[PatchEntry, ...]:
    """Return the patch that undoes the edits that `reverts` specifies. `state` is the state of `key`.

    Raise the errors of `read_patch`. Raise `UnprocessableError` with the code `before_creation` if one of the commits
    is not newer than the creation of its change set. For commits of another change set, the code is `not_its_target` if
    that change set is not the target of `key`, and `moved` if `key` does not contain the commits yet.
    """
    branch = state.branch
    if reverts.of is not None:
        return await _read_target_patch(context, key, reverts, branch)
    if branch is not None and reverts.first <= branch.birth:
        raise UnprocessableError(
            f"commit {branch.birth} created this change set: revert older commits in {branch.origin}, its origin"
            if branch.origin
            else f"commit {branch.birth} created this change set and cannot be reverted: delete the change set",
            code="before_creation",
        )
    return await read_patch(context, key, reverts, state.last)


async def _read_target_patch(
    context: Context, key: ChangeSetKey, reverts: Reverts, branch: Branch | None
) -> tuple[PatchEntry, ...]:
    """Return the patch that undoes commits of the target, which must not be newer than the base of the branch."""
    of, name = str(reverts.of), key.change_set
    if branch is None or branch.target != of:
        raise UnprocessableError(f"{of} is not the target of {name}", code="not_its_target")
    if reverts.last > branch.base:
        raise UnprocessableError(
            f"{name} has the edits of {of} up to commit {branch.base} but not commit {reverts.last}: rebase it first",
            code="moved",
        )
    target = ChangeSetKey.of(key.workspace, of)
    found = await context.reader.newest_commit(target, branch.base)
    if found is not None:
        born = birth_of(*found)
        if reverts.first <= born:
            raise UnprocessableError(
                f"commit {born} created {of}: only newer commits of {of} can be reverted", code="before_creation"
            )
    return await read_patch(context, target, reverts, branch.base)


async def read_patch(context: Context, key: ChangeSetKey, reverts: Reverts, newest: int) -> tuple[PatchEntry, ...]:
    """Return the patch that undoes the edits that `reverts` specifies.

    `newest` is the log sequence of a commit of `key`: the newest commit, or any commit not older than `reverts.last`.

    Raise `UnprocessableError` with the code `no_such_position` if the log has not reached `reverts.last`, or has no
    commit in the range; `no_such_request` if no commit decided the request; `purged` if a commit is gone or does not
    record what it replaced; and `too_large`. Raise `TransientError` if the log or a blob cannot be read.
    """
    if reverts.last > newest:
        raise UnprocessableError(
            f"there is no commit {reverts.last}: the log ends at commit {newest}", code="no_such_position"
        )
    reader, limits, subjects = context.reader, context.settings.limits, context.subjects
    effect, room, previous = NetEffect(), MAX_BYTES, None
    async with OrderedConsumer(
        context.js, subjects.commits_stream, subjects.commits(key), start=reverts.first
    ) as messages:
        async for message in messages:
            await cooperate()
            sequence = message.stream_sequence
            commit = reader.decode(sequence, message.headers, message.data)
            _check_follows(reverts, sequence, commit, previous)
            if previous is None and sequence > reverts.last:
                raise UnprocessableError(
                    f"{key.change_set} has no commit from {reverts.first} to {reverts.last}", code="no_such_position"
                )
            previous = sequence
            if sequence <= reverts.last and commit is not None and commit.kind is Kind.REBASE:
                room -= len(message.data) + sum(ref.size for ref in (commit.delta_blob, commit.before_blob) if ref)
                if room >= 0:
                    effect.add(*_edits(await reader.with_before(await reader.with_delta(commit)), reverts))
                if room < 0 or len(effect) > limits.max_updates:
                    text = (
                        f"these commits edit more than {limits.max_updates:,} values, or are larger than"
                        f" {MAX_BYTES // 2**20} MiB together: revert fewer commits at once"
                    )
                    raise UnprocessableError(text, code="too_large")
            elif sequence <= reverts.last and not _is_decided(commit, reverts):
                raise _no_such_request(sequence, reverts)
            if sequence >= min(reverts.last, newest):
                break
    return effect.inverse()


def _check_follows(reverts: Reverts, sequence: int, commit: Commit | None, previous: int | None) -> None:
    """Raise `UnprocessableError` (`purged`) if commits of the range may be missing between `previous` and `sequence`.

    `previous` is None before the first message that is read.
    """
    if previous is None:
        whole = sequence == reverts.first or (commit is not None and commit.previous < reverts.first)
    else:
        whole = commit is None or commit.previous == previous
    if not whole:
        raise UnprocessableError(
            f"some commits from {reverts.first} to {reverts.last} are no longer in the log: choose newer commits",
            code="purged",
        )


def _edits(commit: Commit, reverts: Reverts) -> tuple[tuple[Update, ...], tuple[Update, ...]]:
    """Return the definitions that `commit` replaced, and its edits. If `reverts` specifies a request, return only the
    definitions that this request replaced, and its edits."""
    delta: tuple[Update, ...] = tuple(commit.delta)  # type: ignore[arg-type] # it is a `rebase` commit
    before = commit.before
    if before is None and delta:
        raise UnprocessableError(
            f"commit {commit.sequence} cannot be reverted, because it does not record what it replaced", code="purged"
        )
    before = before or ()
    if reverts.request is None:
        return before, delta
    first = 0
    for decision in commit.requests:
        end = first + (decision.performed if decision.outcome is Outcome.SUCCESS else 0)
        if decision.request_id == reverts.request:
            replaced = {update.id: update for update in (*before, *delta[:first])}  # later edits override earlier ones
            return tuple([update for update in replaced.values() if type(update) is not Remove]), delta[first:end]
        first = end
    raise _no_such_request(commit.sequence, reverts)


def _is_decided(commit: Commit | None, reverts: Reverts) -> bool:
    """Return whether `commit`, which has no edits, decided the request that `reverts` specifies, if any."""
    decided = () if commit is None else commit.requests
    return reverts.request is None or any(one.request_id == reverts.request for one in decided)


def _no_such_request(sequence: int, reverts: Reverts) -> UnprocessableError:
    return UnprocessableError(
        f"commit {sequence} did not decide the request {reverts.request!r}", code="no_such_request"
    )
