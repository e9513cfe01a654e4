"""The random requests of simulated clients."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from rebaser_client.client import Wait
from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import BranchStatus, Marking, Strategy
from rebaser_core.ids import ChangeSetKey
from rebaser_core.updates import Derive, Recompute, Remove, Set, Update
from tests.simulation.clients import Operation
from tests.simulation.growth import edited, grown

BASE, DERIVED = 4, 4  # numbers of ids that are set, and of ids that are derived
CONTESTED = ("branch",) * 7 + ("target",) * 7 + ("apply",) * 3 + ("rebase",) * 2 + ("create", "onto", "close", "reopen")


def draw_operations(
    rng: random.Random,
    name: str,
    keys: list[ChangeSetKey],
    count: int,
    *,
    garbage: bool,
    newer: bool,
    large: bool,
    quiet: float | None,
    repeats: float,
    size: int = 0,
) -> list[Operation]:
    """Draw `count` requests to change sets of `keys`. With `garbage`, some are unreadable; with `newer`, some of these
    have a version that no server knows.

    `size` is that of a larger graph, which most requests create or edit. Most pauses take about `quiet` seconds.
    `repeats` is the chance that a request is sent twice.
    """
    operations = []
    hurry = rng.choice((0.0, 0.05, 0.5, 2.0))  # average seconds between requests
    waits: tuple[Wait | None, ...] = rng.choice(((None,), ("applied",), ("applied", None, "derived")))
    for number in range(count):
        id_ = f"{name}-{number}"
        key = rng.choice(keys)
        pause = rng.random() * 2 * hurry if rng.random() < 0.8 else rng.random() * 4
        if quiet is not None and rng.random() < 0.7:
            pause = max(quiet + rng.uniform(-0.03, 0.05), 0.0)
        if garbage and rng.random() < 0.1:
            version = rng.choice((2, 2, 9)) if newer else 2
            operations.append(Operation(id_, key, (), pause, None, garbage=rng.randbytes(20), version=version))
            continue
        updates = tuple(_update(rng) for _ in range(rng.choice((1, 1, 2, 5))))
        if size and rng.random() < 0.8:
            updates = grown(rng, size) if not number or rng.random() < 0.1 else edited(rng, size)
        if large and rng.random() < 0.2:
            updates = (*updates, *(Set(f"n{at}", rng.randrange(10**15)) for at in range(60)))
        elsewhere = "other" if rng.random() < 0.1 else None
        twice = rng.random() < repeats
        operations.append(Operation(id_, key, updates, pause, rng.choice(waits), elsewhere, twice=twice))
        if size and rng.random() < 0.1:
            operations[-1].recompute = Recompute()
            operations[-1].updates = (*updates, Derive("again", "sum", {"values": "v/0"}))
    return operations


def draw_history(rng: random.Random, operations: list[Operation]) -> None:
    """Change some requests, so that they name an author, expect what their client has seen, or revert commits."""
    for operation in operations:
        chance, operation.pick = rng.random(), rng.randrange(10**6)
        if operation.garbage:
            continue
        operation.author = rng.choice(("", operation.id))
        operation.takes_back = chance < 0.25
        operation.expects = chance > 0.6
        if operation.wait is None and rng.random() < 0.5:  # its client then learns commits
            operation.wait = "applied"


def draw_forks(rng: random.Random, operations: list[Operation]) -> None:
    """Change some requests, so that they create change sets from others, or edit those."""
    parents = [operation.key.change_set for operation in operations]
    created: list[ChangeSetKey] = []
    for operation in operations:
        chance, child, other = rng.random(), ChangeSetKey("w", f"x{rng.randrange(6)}"), rng.random()
        known = [key.change_set for key in created]
        parent = rng.choice([*parents[:2], *known] if chance < 0.28 else ["none", child.change_set])
        target = rng.choice((None, None, parents[0]))
        closed, of_old, pick = rng.random() < 0.1, rng.random() < 0.3, rng.randrange(10**6)
        used = rng.choice(created) if created else operation.key
        if operation.garbage:
            continue
        if chance < 0.3:
            operation.key, operation.create = child, Create(parent, None, target, closed, follows=False)
            operation.of_old, operation.pick = of_old, pick
            _ask_for_action(operation)
            created.append(child)
        elif other < 0.4:
            operation.key = used


def draw_applies(rng: random.Random, operations: list[Operation]) -> None:
    """Change requests, so that they create a branch, edit it and its target, and apply it, again and again; some
    protect a change set."""
    steps: list[str] = ["edit"]
    target = branch = operations[0].key.change_set
    for operation in operations:
        if operation.garbage:
            continue
        chance, pick, of_old = rng.random(), rng.randrange(10**6), rng.random() < 0.4
        child, update = f"y{rng.randrange(9)}", _update(rng)
        strict, allow_stale = rng.random() < 0.15, rng.random() < 0.7
        edits = operation.updates or (update,)
        if not steps:
            target = rng.choice((target, target, branch))  # also branches of branches
            again = ["apply"] if rng.random() < 0.3 else []
            steps = [*again, "create", *["edit"] * rng.choice((1, 1, 2, 3)), "apply"]
        _ask_for_action(operation)
        operation.create = operation.apply = None
        if chance < 0.05:
            operation.key, operation.marking = ChangeSetKey("w", target), Marking(chance < 0.02)
            continue
        match steps.pop(0):
            case "create":
                branch = child
                operation.key, operation.create = ChangeSetKey("w", branch), Create(target, follows=False)
            case "edit":
                operation.key, operation.updates = ChangeSetKey("w", branch if chance < 0.7 else target), edits
            case "apply":
                operation.key, operation.of_old, operation.pick = ChangeSetKey("w", target), of_old, pick
                operation.apply = Apply(branch if chance < 0.95 else child, None, strict, allow_stale)


def draw_statuses(rng: random.Random, operations: list[Operation]) -> None:
    """Change some requests, so that they close, delete or reopen a change set."""
    keys = [operation.key for operation in operations]
    closed: list[ChangeSetKey] = []
    for operation in operations:
        chance, key = rng.random(), rng.choice(keys)
        status = rng.choice(list(BranchStatus) + [BranchStatus.OPEN] * 3)
        status = BranchStatus.DELETED if status is BranchStatus.CLOSED else status
        if status is BranchStatus.OPEN and closed and chance < 0.2:
            key = closed.pop()
        if operation.garbage or chance > 0.25:
            continue
        if status is not BranchStatus.OPEN:
            closed.append(key)
        _ask_for_action(operation)
        operation.create = operation.apply = operation.rebase = None
        operation.key, operation.marking = key, Marking(status=status)


def draw_rebases(rng: random.Random, operations: list[Operation]) -> None:
    """Change some requests, so that they rebase branches, or edit branches with `expect`; some applies keep their
    branch open."""
    created = next((operation for operation in operations if operation.create is not None), None)
    if created is None or created.create is None:
        return
    branch, target = created.key, ChangeSetKey("w", created.create.parent or "none")
    strategies = (Strategy.RECORD, Strategy.RECORD, Strategy.RECORD, Strategy.OURS, Strategy.THEIRS)
    for operation in operations[operations.index(created) + 1 :]:
        chance, of_target, strategy = rng.random(), rng.random() < 0.5, rng.choice(strategies)
        if operation.garbage:
            continue
        if operation.apply is not None:
            operation.apply = replace(operation.apply, keep=chance < 0.7)
        elif chance < 0.3 and (operation.create is None or chance < 0.15):
            _ask_for_action(operation)
            operation.create = operation.marking = None
            operation.key, operation.rebase = branch, Rebase(strategy=strategy)
        elif operation.updates and chance < 0.8:
            operation.key, operation.expects = target if of_target else branch, chance < 0.5


def draw_contested(rng: random.Random, operations: list[Operation], keys: list[ChangeSetKey], quiet: float) -> None:
    """Change requests, so that a few branches and their targets edit the same few ids.

    After `quiet` seconds, an owner releases an idle change set. Some pauses are longer, so that the change set has to
    be loaded again.
    """
    main, names = keys[0].change_set, [f"y{number}" for number in range(5)]
    parents: dict[str, str] = {}
    steps = ["target", "create"]
    for operation in operations:
        operation.garbage, operation.of_old, operation.pick = b"", False, rng.randrange(10**6)
        _ask_for_action(operation)
        operation.create = operation.apply = operation.rebase = operation.marking = operation.revert = None
        operation.pause = rng.choice((0.0, 0.0, rng.random() * 0.2, 1.1 * min(quiet, 1.0) + rng.random() * 0.3))
        branch = rng.choice(list(parents)[-2:] or names)
        target = parents.get(branch, main)
        step = steps.pop(0) if steps else rng.choice(CONTESTED)
        if step in ("branch", "target"):
            operation.key = ChangeSetKey("w", branch if step == "branch" and parents else target)
            operation.updates = tuple(_disputed(rng) for _ in range(rng.choice((1, 1, 2))))
            operation.expects = rng.random() < 0.4
            operation.wait = rng.choice(("applied", "applied", None))
            continue
        operation.key = ChangeSetKey("w", branch)
        match step:
            case "create":
                parent = rng.choice([main, main, *parents])
                fresh = rng.choice([one for one in names if one not in parents] or names)
                operation.key = ChangeSetKey("w", fresh)
                operation.create = Create(parent, follows=rng.random() < 0.8)
                parents[fresh] = parent
            case "apply":
                operation.key, operation.of_old = ChangeSetKey("w", target), rng.random() < 0.2
                operation.apply = Apply(branch, None, rng.random() < 0.1, rng.random() < 0.9, rng.random() < 0.5)
            case "rebase" | "onto":
                grandparent = parents.get(target, main) if step == "onto" else None
                strategy = rng.choice((Strategy.RECORD, Strategy.RECORD, Strategy.OURS, Strategy.THEIRS))
                operation.rebase = Rebase(onto=grandparent, strategy=strategy)
            case "close":
                operation.marking = Marking(status=BranchStatus.ABANDONED)
                operation.key = ChangeSetKey("w", rng.choice((branch, target if target != main else branch)))
            case "reopen":
                operation.marking = Marking(status=BranchStatus.OPEN)


def draw_overtaken(rng: random.Random, operations: list[Operation]) -> None:
    """Change requests of `draw_contested`, so that a branch is edited twice and applied as of the first of these edits.

    Then the branch has edited an id again after the position that its target took. First, a rebase settles conflicts.
    """
    parents: dict[str, str] = {}
    for operation in operations:
        if operation.create is not None:
            parents[operation.key.change_set] = operation.create.parent or ""
    left: list[Callable[[Operation], None]] = []
    for operation in operations:
        if not left and parents and rng.random() < 0.4:
            left = list(_overtaking(rng, *rng.choice(list(parents.items()))))
        if left and operation.create is None:
            _ask_for_action(operation)
            operation.apply = operation.rebase = operation.marking = None
            operation.pause, operation.of_old = 0.0, False
            left.pop(0)(operation)


def _overtaking(rng: random.Random, branch: str, target: str) -> Iterator[Callable[[Operation], None]]:
    """Yield what turns operations into a rebase of `branch`, two edits of it, and an apply as of the first of them."""

    def rebase(operation: Operation) -> None:
        operation.key, operation.rebase = ChangeSetKey("w", branch), Rebase(strategy=Strategy.OURS)

    def edit(operation: Operation) -> None:
        operation.key, operation.updates = ChangeSetKey("w", branch), (Set("v0", rng.randint(1, 9)),)

    def apply(operation: Operation) -> None:
        operation.key, operation.of_old, operation.pick = ChangeSetKey("w", target), True, -2
        operation.apply = Apply(branch, allow_stale=True, keep=rng.random() < 0.5)

    yield from (rebase, edit, edit, apply)


def _disputed(rng: random.Random) -> Update:
    """Draw an edit of one of the few ids that branches and their targets both edit."""
    chance = rng.random()
    if chance < 0.1:
        return Derive("d0", "sum", {"values": ["v0", "v1"]})
    return Remove("v1") if chance < 0.25 else Set(rng.choice(("v0", "v0", "v1")), rng.randint(1, 3))


def _ask_for_action(operation: Operation) -> None:
    """Remove what the operation asks for; the caller then sets what it asks for instead."""
    operation.takes_back = operation.expects = operation.twice = False
    operation.updates, operation.recompute, operation.from_change_set = (), None, None
    operation.wait = "applied"


def _update(rng: random.Random) -> Update:
    chance = rng.random()
    if chance < 0.55:
        return Set(f"v{rng.randrange(BASE)}", rng.randint(1, 9))
    if chance < 0.9:
        at = rng.randrange(DERIVED)
        # Only ids before it, so that there is no cycle.
        known = [f"v{one}" for one in range(BASE)] + [f"d{one}" for one in range(at)]
        return Derive(f"d{at}", rng.choice(("sum", "product")), {"values": rng.sample(known, rng.randint(1, 3))})
    if chance < 0.95:
        return Set(f"d{rng.randrange(DERIVED)}", rng.randint(1, 9))
    return Remove(f"{rng.choice('vd')}{rng.randrange(BASE)}")
