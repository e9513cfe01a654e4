"""Follows the logs of one workspace, and lets a model decide each request again, in the order of the logs."""

import copy
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio

from rebaser_client import RebaserClient
from rebaser_client.jetstream import JetStream
from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import BranchStatus, Commit, Decision, Kind, Marking, Outcome, Reverts
from tests.chaos.branch_requests import Asked, short, text_of
from tests.chaos.system import SUBJECTS
from tests.support.branch_books import RefusedError
from tests.support.branches import World

TRACED = 80  # requests that a report shows
# Pairs of refusals, of the product and of the model, that are both right: they check in another order.
ALIKE = {
    ("not_a_branch", "no_target"),
    ("not_its_target", "no_such_change_set"),
    ("exists", "no_such_change_set"),
    ("self", "not_its_target"),
    ("self", "no_such_change_set"),
    ("deleted", "no_such_change_set"),
    ("deleted", "moved"),
    ("deleted", "purged"),
    ("deleted", "closed"),
    ("self", "target_is_open"),
    ("self", "purged"),
    ("closed", "no_such_change_set"),
    ("not_its_target", "purged"),
    ("not_its_target", "target_is_open"),
}


class Differs(AssertionError):  # noqa: N818 - it reads as a sentence where it is raised
    """The product and the model differ."""


@dataclass
class Positions:
    """The commits of the product in the order of the stream, and the newest commit of the model after each."""

    product: list[float] = field(default_factory=lambda: [0])
    model: list[int] = field(default_factory=lambda: [0])

    def add(self, product: float, model: int) -> None:
        self.product.append(product)
        self.model.append(model)

    def in_model(self, product: float) -> int:
        return self.model[bisect_right(self.product, product) - 1]


class Ledger:
    """The requests that were sent to the workspace, and what the model makes of them.

    `world` is the model. `logs` has the log sequences of the product's commits by name, and `edits` the commits and ids
    of the requests that edited. `decided` has the code of each decided request, empty if it was applied.
    """

    def __init__(self, client: RebaserClient, js: JetStream, workspace: str, applied: anyio.Event) -> None:
        self.world = World()
        self.positions = Positions()
        self.workspace = workspace
        self.logs: dict[str, list[int]] = {}
        self.edits: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.decided: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=TRACED)
        # Branches that are to be settled, with the commits that applied them.
        self.settles: set[tuple[str, int]] = set()
        self._client = client
        self._js = js
        self._applied = applied  # set when a branch was applied
        self._following = anyio.Lock()
        self._asked: dict[str, Asked] = {}  # by request id
        self._sent: dict[str, int] = {}  # by request id: the newest commit that was known when the request was sent
        # By name: the first commit in the model of a change set that began with an edit.
        self._begun: dict[str, int] = {}
        # By commit and request id: the commits of the model for the request.
        self._slices: dict[tuple[int, str], tuple[int, int]] = {}
        self._manual: set[str] = set()  # branches that follow no target

    def enter(self, asked: Asked) -> str:
        """Record a request that is about to be sent, and return its id."""
        request = f"r{len(self._asked)}"
        self._asked[request] = asked
        self._sent[request] = max((log[-1] for log in self.logs.values()), default=0)
        return request

    async def follow(self) -> None:
        """Let the model decide what is new in the logs."""
        async with self._following:
            last = (await self._js.stream_info(SUBJECTS.commits_stream)).last_sequence
            found: list[tuple[str, Commit]] = []
            for info in await self._client.branches(self.workspace):
                name = info.change_set
                known = self.logs[name][-1] if name in self.logs else 0
                if known < min(last, info.sequence):
                    async for commit in self._client.watch(self.workspace, name, after=known):
                        if commit.sequence <= last:
                            found.append((name, commit))
                        if commit.sequence >= min(last, info.sequence):
                            break
            for name, commit in sorted(found, key=lambda one: one[1].sequence):
                self._decide_again(name, commit)
                self.logs.setdefault(name, []).append(commit.sequence)
                self.positions.add(commit.sequence, self.world.last)

    def _decide_again(self, name: str, commit: Commit) -> None:
        batch = self.world.last
        for decision in commit.requests:
            request = decision.request_id
            if request.startswith("settle-"):
                self._settle(name, commit, decision)
            elif request in self.decided:
                raise Differs(f"commit {commit.sequence} of {name} decides {request} again")
            elif request in self._asked:
                before = self.world.last
                self.decided[request] = "" if decision.outcome is Outcome.SUCCESS else decision.code or decision.outcome
                self._again(request, commit, decision, batch)
                self._slices[commit.sequence, request] = (before + 1, self.world.last)
                if self.world.last > before and not self._asked[request].action:
                    self.edits[name].append((commit.sequence, request))
        if not commit.requests and commit.kind is Kind.REPLAY:
            self.counts["pulled"] += 1
            self._pulled(name, commit)

    def _again(self, request: str, commit: Commit, decision: Decision, batch: int) -> None:
        """Let the model decide the request that `commit` decided, and compare."""
        asked, code, seen = self._asked[request], self.decided[request], ""
        told = {
            one.id: (text_of(one.sides.base), text_of(one.sides.ours), text_of(one.sides.theirs))
            for one in decision.conflicts
            if one.sides is not None
        }
        self.trace.append(f"{commit.sequence}: {request} to {asked}: {code or 'applied'}")
        if code == "stale" and isinstance(asked.action, Apply) and not asked.action.allow_stale:
            self.counts["apply stale"] += 1
            return
        if code == "purged" and self._of_another(asked):
            self.counts["create purged"] += 1
            return
        if code == "moved" and self._may_be_moved(asked):
            self.counts["reverts moved"] += 1
            return
        for world in self._views(asked, self._sent[request]):
            refused = self._decide(world, asked, commit, batch)
            wanted = "" if refused is None else str(refused)
            seen = seen or wanted or "applied"
            if wanted != code and (code, wanted) not in ALIKE:
                # The product does nothing, and reports success, even if the target did not exist at `upto`.
                if isinstance(asked.action, Rebase) and not code and wanted in ("nothing_new", "no_such_change_set"):
                    return
                continue
            if code == "conflicts" and refused is not None and told.items() - refused.conflicts.items():
                seen = f"refused with the conflicts {refused.conflicts}, not {told}"
                continue
            for name, books in self.world.books.items():
                if name != asked.name:
                    world.books[name], world.logs[name] = books, self.world.logs[name]
            self.world = world
            self.counts[f"{_kind(asked)} {wanted or 'done'}"] += 1
            break
        else:
            raise Differs(f"{request} in commit {commit.sequence} is {code or 'applied'}, not {short(seen)}")
        if code:
            return
        if isinstance(asked.action, Apply):
            assert commit.source is not None
            self.settles.add((asked.action.source, commit.sequence))
            self._applied.set()
        if isinstance(asked.action, Create):
            (self._manual.discard if asked.action.follows else self._manual.add)(asked.name)

    def _views(self, asked: Asked, sent: int) -> Iterator[World]:
        """Yield copies of the model in which the change sets that the request reads beside its own are as they were at
        any moment since `sent`. A server reads them before it decides, and a refusal does not name the position."""
        yield _copied(self.world)
        others = self._others(asked)
        moments = sorted({0, *(at for other in others for at in self.logs.get(other, []))}, reverse=True)
        for some in [others, *([other] for other in others)] if others[1:] else [others] if others else []:
            for at in moments:
                world = _copied(self.world)
                for other in some:
                    last = self.positions.in_model(at)
                    world.logs[other] = [one for one in world.logs.get(other, []) if one.sequence <= last]
                    world.books[other] = [book for book in world.books.get(other, []) if book.sequence <= last]
                    if not world.books[other]:
                        del world.books[other], world.logs[other]
                yield world
                if at <= sent:
                    break

    def _others(self, asked: Asked) -> list[str]:
        """Return the change sets that a server reads to decide the request, without that of the request itself."""
        action, others = asked.action, list[str | None]()
        match action:
            case Create():
                others = [action.parent]
            case Apply():
                others = [action.source]
            case Reverts():
                others = [action.of]
            case Rebase() if asked.name in self.world.books:
                others = [self.world.books[asked.name][-1].target, action.onto]
        return [other for other in others if other not in (None, asked.name)]

    def _of_another(self, asked: Asked) -> bool:
        """Return whether the request creates a change set from an earlier change set with the name of its parent."""
        action = asked.action
        if not isinstance(action, Create) or action.at is None or action.parent is None:
            return False
        then = self.world.book(action.parent, self.positions.in_model(action.at))
        return then.birth != self.world.book(action.parent).birth

    def _may_be_moved(self, asked: Asked) -> bool:
        """Return whether the request reverts commits of a target up to one that the model counts as the base, because
        it has only results of updates."""
        if not isinstance(asked.action, Reverts) or asked.action.of is None or asked.name not in self.world.books:
            return False
        return self._last(self.world, asked.action) == self.world.books[asked.name][-1].base

    def _last(self, world: World, reverts: Reverts) -> int:
        """Return the last commit of the model to revert: in the log of a target, one of that log."""
        last = self.positions.in_model(reverts.last)
        return last if reverts.of is None or reverts.of not in world.books else world.book(reverts.of, last).sequence

    def _decide(self, world: World, asked: Asked, commit: Commit, batch: int) -> RefusedError | None:
        """Let `world` decide the request. A missing position is the one that the product read."""
        name, action, positions = asked.name, asked.action, self.positions
        begun = self._begun.get(name, 0)
        try:
            match action:
                case None if not asked.updates:  # a change set without values refuses even these
                    return RefusedError("deleted") if world.is_deleted(name) else None
                case None:
                    if name not in world.books:
                        # In the model, a commit without edits begins such a change set. In the product, its birth is 0.
                        begun = self._begun[name] = world.edit(name, {}).sequence
                        positions.add(commit.sequence - 0.5, world.last)
                    at = None if asked.at is None else max(positions.in_model(asked.at), begun)
                    world.edit(name, {one.id: text_of(one) for one in asked.updates}, at, batch=max(batch, begun))
                case Create():
                    assert action.parent is not None
                    at = action.at if commit.origin is None or action.at is not None else commit.origin.sequence
                    sibling = action.target is not None
                    world.create(name, action.parent, self._in_model(at), sibling=sibling, closed=action.closed)
                case Apply():
                    at = action.at if commit.source is None or action.at is not None else commit.source.sequence
                    world.apply(name, action.source, self._in_model(at), strict=action.strict, keep=action.keep)
                case Rebase():
                    read, onto = commit.source, action.onto is not None
                    upto = action.upto if read is None or action.upto is not None else read.sequence
                    until = self._in_model(upto)
                    if until is not None and not onto and name in world.books:
                        # The branch already has the edits up to its base, and may settle conflicts even if `upto` is
                        # before the base.
                        until = max(until, world.books[name][-1].base)
                    anyway = commit.kind is Kind.REPLAY
                    world.rebase(name, action.strategy.value, until, onto=onto, anyway=anyway)
                case Reverts():
                    first, last = positions.in_model(action.first - 0.5) + 1, self._last(world, action)
                    if action.request is not None:
                        first, last = self._slices[action.first, action.request]
                    begun = self._begun.get(action.of or name, 0)
                    world.revert(name, max(first, begun + 1) if begun else first, last, of=action.of)
                case Marking() if action.status is BranchStatus.OPEN and world.is_deleted(name):
                    world.undelete(name)
                case Marking():
                    status: Any = None if action.status is None else action.status.value
                    world.mark(name, status, action.protected)
        except RefusedError as refused:
            return refused
        return None

    def _in_model(self, at: int | None) -> int | None:
        return None if at is None else self.positions.in_model(at)

    def _settle(self, name: str, commit: Commit, decision: Decision) -> None:
        applied = int(decision.request_id.removeprefix("settle-"))
        self.trace.append(f"{commit.sequence}: settle {name} after {applied}: {decision.code or 'done'}")
        if (name, applied) not in self.settles:
            raise Differs(f"commit {commit.sequence} of {name} settles the commit {applied}, which applied nothing")
        self.settles.discard((name, applied))
        world, place = self.world, self.positions.in_model(applied)
        world.queue.sort(key=lambda one: one[:2] != (name, place))
        try:
            world.settle()
        except RefusedError as refused:
            self.counts[f"settle {refused}"] += 1
        else:
            self.counts["settle done"] += 1

    def _pulled(self, name: str, commit: Commit) -> None:
        assert commit.source is not None
        self.trace.append(f"{commit.sequence}: pull {name} up to {commit.source.sequence}")
        if name in self._manual:
            raise Differs(f"commit {commit.sequence} of {name} pulls, though the branch does not follow its target")
        try:
            self.world.rebase(name, upto=self.positions.in_model(commit.source.sequence), anyway=True)
        except RefusedError as refused:
            if str(refused) != "nothing_new":
                raise Differs(f"commit {commit.sequence} of {name} pulls, which is {refused}") from refused


def _kind(asked: Asked) -> str:
    return "edit" if asked.action is None else type(asked.action).__name__.lower()


def _copied(world: World) -> World:
    """Return a copy of the model that can decide further requests."""
    copied = copy.copy(world)
    copied.books = {name: list(books) for name, books in world.books.items()}
    copied.logs = {name: list(commits) for name, commits in world.logs.items()}
    copied.queue = list(world.queue)
    return copied
