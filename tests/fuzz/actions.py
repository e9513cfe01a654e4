"""Decides requests with actions as owners do, in a few change sets in memory: what each action needs is read from logs
whose positions are those of the golden files."""

from collections.abc import Iterator
from dataclasses import replace

from rebaser_core.branches.branch import Apply, Create, Fork, Rebase
from rebaser_core.branches.merge import Merged, NetEffect, PatchEntry
from rebaser_core.checkpoint import Chain
from rebaser_core.commit import Applied, BranchStatus, BranchSummary, Commit, Kind, Marking, Reverts
from rebaser_core.decisions.decide import DecidedBatch, decide
from rebaser_core.decisions.queued_request import QueuedRequest, Restored
from rebaser_core.decisions.replay import Replayed
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import decode_commit
from rebaser_core.state.change_set import ChangeSetState
from tests.support.message_store import Store

MAIN, BRANCH, DELETED, NEW = "main", "ann", "gone", "cs"
NEXT = 50  # the log sequence of the commit that decides the request


def installation() -> Store:
    """Return a target, a branch that can be applied up to position 38 and is in conflict from 39 on, a deleted change
    set, and one without commits."""
    store = Store(inline=False)
    store.edit(DELETED, 29, {"a": 1})
    store.decide(DELETED, 29 + 1, QueuedRequest(2, RequestId("d"), action=Marking(status=BranchStatus.DELETED)))
    store.edit(MAIN, 30, {"a": 1, "b": 1})
    store.edit(MAIN, 32, {"a": 2})
    store.create(BRANCH, 34, MAIN, 32, sibling=False)
    store.edit(BRANCH, 35, {"c": 1})
    store.edit(MAIN, 36, {"b": 2})
    store.edit(MAIN, 38, {"a": 4})
    store.edit(BRANCH, 39, {"a": 3})
    store.live[NEW] = ChangeSetState()
    return store


def decided_everywhere(request: QueuedRequest) -> Iterator[DecidedBatch]:
    """Decide `request` in a change set of each kind. Check that its commit, if there is one, is read as it was written,
    and gives a state that can be loaded."""
    for name in (MAIN, BRANCH, DELETED, NEW):
        store = installation()
        state = store.live[name]
        ready = with_sources(store, name, request)
        decided = decide(state, Applied("s", 0), [ready])
        yield decided
        commit = draft(store, name, decided)
        appended = store.append(name, NEXT, commit)
        assert (appended.requests, appended.authors) == (commit.requests, commit.authors)
        if decided.restored is not None:
            decided.restored.state.restore(state)
        elif commit.kind is Kind.CREATE:
            assert store.load(name)[0].branch is not None
        else:
            state.fold(NEXT, store.whole(appended))
            state.values()


def with_sources(store: Store, name: str, request: QueuedRequest) -> QueuedRequest:
    """Return the request with what its action needs, or with a refusal."""
    state = store.live[name]
    try:
        match request.action:
            case Create() as create:
                return replace(request, fork=fork_of(store, name, create))
            case Apply() as apply:
                check_there(store, apply.source, apply.at)
                offer = store.offer(name, apply)
                return with_merged(state, replace(request, offer=offer, patch=offer.patch))
            case Rebase() as rebase:
                check_there(store, rebase.onto or MAIN, rebase.upto)
                theirs = store.theirs(name, rebase)
                assert state.branch is not None
                replayed = Replayed(state.branch, theirs, rebase.strategy)
                assert all(True for _ in replayed.compare(state.cells.edit_of, 2))
                return replace(request, theirs=theirs, replayed=replayed)
            case Reverts() as reverts:
                return with_merged(state, replace(request, patch=inverse(store, name, reverts)))
            case Marking(status=BranchStatus.OPEN) if state.status is BranchStatus.DELETED:
                return replace(request, restored=Restored(store.load(name, NEXT - 21)[0], Chain()))
    except UnprocessableError as error:
        return replace(request, refusal=error)
    return request


def check_there(store: Store, name: str, at: int | None) -> None:
    if not any(at is None or one.sequence <= at for one in store.logs.get(name, ())):
        raise UnprocessableError("there is no such position", code="no_such_position")


def fork_of(store: Store, name: str, create: Create) -> Fork:
    if store.live[name].edited:
        raise UnprocessableError("it exists", code="exists")
    if create.parent is None:
        return Fork(BranchSummary("", 0, BranchStatus.OPEN, 0, 0, "", 0))
    check_there(store, create.parent, create.at)
    sibling = create.target not in (None, create.parent)
    if create.parent == DELETED or (sibling and (create.parent, create.target) != (BRANCH, MAIN)):
        raise UnprocessableError("it has no such target", code="not_its_target")
    return store.fork(create.parent, NEXT if create.at is None else create.at, sibling=sibling)


def with_merged(state: ChangeSetState, request: QueuedRequest) -> QueuedRequest:
    merged = Merged()
    merged.add(state.cells.edit_of, request.patch)
    return replace(request, merged=merged)


def inverse(store: Store, name: str, reverts: Reverts) -> tuple[PatchEntry, ...]:
    effect, log = NetEffect(), store.logs.get(reverts.of or name, ())
    for message in [one for one in log if reverts.first <= one.sequence <= reverts.last]:
        commit = decode_commit(message.headers, message.data)
        if commit.kind is Kind.REBASE:
            effect.add(commit.before or (), commit.delta)  # type: ignore[arg-type] # a rebase has updates
    if not len(effect):
        raise UnprocessableError("there is no such commit", code="no_such_position")
    return effect.inverse()


def draft(store: Store, name: str, decided: DecidedBatch) -> Commit:
    """Return the commit of one decided request, as the owner writes it."""
    known = {"applied": decided.applied, "requests": decided.decisions, "authors": decided.authors}
    if (fork := decided.fork) is not None:
        begins = {"covers": fork.covers, "checkpoint": fork.checkpoint, "origin": fork.origin, "begin": 0}
        return store.draft(name, Kind.CREATE, branch=fork.branch, **begins, **known)
    if decided.marking is not None:
        return store.draft(name, Kind.MARK, marking=decided.marking, **known)
    state = store.live[name]
    before = tuple([stood for one in decided.delta if (stood := state.cells.edit_of(one.id)) is not None])
    known |= {"delta": decided.delta, "before": before, "source": decided.source}
    if (found := decided.replayed) is not None:
        replay = {"replay": found.content(), "status": found.status, "source": found.source}
        return store.in_blob(store.draft(name, Kind.REPLAY, branch=found.summary(), **(known | replay)))
    if state.branch is not None:
        known["branch"] = state.branch.summary(decided.delta, decided.settled)
    return store.draft(name, Kind.REBASE, reverts=decided.reverts, settled=decided.settled, **known)
