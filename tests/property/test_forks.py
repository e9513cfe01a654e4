"""Random forks, edits and applies, folded from messages alone: each state equals that of the model, and changes undone
give the target at the base."""

import random
from collections import Counter
from typing import Any

import pytest

from rebaser_core.branches.branch import Apply, Rebase, differing
from rebaser_core.commit import (
    Marking,
    Strategy,
)
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Set
from tests.support.branch_books import Definitions, RefusedError
from tests.support.branches import World
from tests.support.message_store import Store

KINDS = (("edit", "create", "apply", "rebase", "settle", "protect", "checkpoint"), (10, 4, 6, 8, 2, 1, 2))
IDS = [f"id{number}" for number in range(12)]


def seen(state: ChangeSetState) -> tuple[Any, ...]:
    """Return everything of a state that a user can see."""
    cells, branch = state.cells, state.branch
    definitions = {update.id: (update, cells.edited(update.id)) for update in cells.updates()}
    changed = None if branch is None else {one.id: one for one in differing(branch.changes.items(), cells.edit_of)}
    about = None
    if branch is not None:
        left = {id_: (one.base, one.recorded_at) for id_, one in branch.conflicts.items()}
        origin = (branch.origin, branch.origin_sequence)
        about = (branch.birth, branch.target, branch.base, branch.status, branch.own, left, origin)
    return definitions, (state.edited, state.taken, state.protected), changed, about


def expected(world: World, name: str, at: int | None = None) -> tuple[Any, ...]:
    """Return the same of the model."""
    book = world.book(name, at)
    cells = {id_: (Set(id_, one), book.edited[id_]) for id_, one in book.cells.items()}
    changed = {id_: base for id_, base in book.changes.items() if base != book.cells.get(id_)}
    left = {id_: (None if one.base is None else Set(id_, one.base), one.told) for id_, one in book.conflicts.items()}
    about = (book.target, book.base, book.status, book.own, left)
    return cells, (book.last_edit, book.taken, book.protected), changed, about


def compare(store: Store, world: World, name: str, at: int | None = None) -> None:
    loaded = store.load(name, at)[0]
    if at is None:
        assert seen(loaded) == seen(store.live[name]), "another owner would see something else"
    definitions, edited, changed, about = seen(loaded)
    cells, last_edit, changes, branch = expected(world, name, at)
    assert (definitions, edited) == (cells, last_edit)
    if about is not None:
        assert about[1:6] == branch
        assert changed.keys() == changes.keys()
        check_law(store, loaded)


def check_law(store: Store, branch_state: ChangeSetState) -> None:
    """Check that undoing the changes of a branch gives its target at the base."""
    branch = branch_state.branch
    assert branch is not None
    target = store.load(branch.target, branch.base)[0]
    here = {update.id: update for update in branch_state.cells.updates()}
    for id_, base in branch.changes.items():
        if base is None:
            here.pop(id_, None)
        else:
            here[id_] = base
    assert here == {update.id: update for update in target.cells.updates()}


def asked(world: World, method: str, **arguments: Any) -> tuple[int, str]:
    """Return the decision of the model: the sequence of its commit, or the code of its refusal."""
    try:
        return getattr(world, method)(**arguments).sequence, ""
    except RefusedError as refused:
        return 0, str(refused)


@pytest.mark.parametrize("group", range(4))
def test_forks_of_forks_are_those_of_the_model(group: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(3 * group, 3 * group + 3):
        run(seed, found)
    assert found["apply "]
    assert found["edit "] > found["edit moved"] > 0
    assert found["conflicts"]
    assert found["rebase "]
    assert found["settle "]


def run(seed: int, found: Counter[str]) -> None:
    rng = random.Random(seed)
    world, store = World(), Store(inline=seed % 2 == 0)
    few = Thresholds(max_deltas=rng.choice((1, 3, 16)), delta_changes_divisor=rng.choice((1, 2)))
    names = ["main"]
    with forced(few):
        world.edit("main", {"id0": 1})
        store.edit("main", 1, {"id0": 1})
        for _ in range(160):
            name = rng.choice(names[-4:])
            match rng.choices(*KINDS)[0]:
                case "edit":
                    delta: Definitions = {
                        id_: rng.choice((None, 1, 2, 3)) for id_ in rng.sample(IDS, rng.choice((1, 2, 5)))
                    }
                    at = rng.choice((None, world.book(name).sequence, rng.randint(1, world.last)))
                    sequence, code = asked(world, "edit", name=name, delta=delta, at=at)
                    assert store.edit(name, sequence, delta, at) == code
                    found[f"edit {code}"] += 1
                case "rebase":
                    upto = rng.choice((None, None, rng.randint(1, world.last)))
                    strategy: Any = rng.choice(("record", "record", "ours", "theirs"))
                    onto = rng.random() < 0.1
                    sequence, code = asked(world, "rebase", name=name, strategy=strategy, upto=upto, onto=onto)
                    if code in {"nothing_new", "target_is_open", "no_such_change_set"}:
                        continue
                    target, reached = (None, upto) if code else world.logs[name][-1].source or (None, upto)
                    action = Rebase(reached, target if onto else None, Strategy(strategy))
                    assert store.rebase(name, sequence, action) == {"no_target": "not_a_branch"}.get(code, code)
                    found[f"rebase {code}"] += 1
                    found["conflicts"] += bool(world.book(name).conflicts)
                case "settle" if world.queue:
                    name = world.queue[0][0]
                    upto = world.queue[0][1]
                    sequence, code = asked(world, "settle")
                    if code != "nothing_new":
                        assert store.rebase(name, sequence, Rebase(upto)) == code
                    found[f"settle {code}"] += 1
                    found[world.book(name).status] += 1
                case "apply":
                    target = world.book(name).target if rng.random() < 0.9 else rng.choice(names)
                    at = rng.choice((None, None, rng.randint(1, world.last)))
                    strict = rng.random() < 0.2
                    if target is None:
                        continue
                    sequence, code = asked(world, "apply", name=target, source=name, at=at, strict=strict)
                    told = store.apply(target, sequence, Apply(name, at, strict))
                    assert told == code or (told and code == "closed"), "of several reasons, either may be told"
                    found[f"apply {code}"] += 1
                    name = target
                case "protect":
                    on = rng.random() < 0.4
                    sequence, code = asked(world, "mark", name=name, protected=on)
                    request = QueuedRequest(1, RequestId("r"), action=Marking(protected=on))
                    assert store.decide(name, sequence, request) == code == ""
                case "create" if len(names) < 24:
                    at = rng.choice((None, world.book(name).sequence, rng.randint(1, world.last)))
                    sibling = rng.random() < 0.4
                    try:
                        commit = world.create(f"b{len(names)}", name, at, sibling=sibling)
                    except RefusedError:
                        continue
                    assert commit.source is not None
                    name = f"b{len(names)}"
                    store.create(name, commit.sequence, *commit.source, sibling=sibling)
                    names.append(name)
                case "checkpoint":
                    world.last += 1  # a commit that the model does not have
                    store.checkpoint(name, world.last)
            compare(store, world, name)
        for name in names:
            compare(store, world, name)
            birth = world.logs[name][0].sequence
            compare(store, world, name, rng.randint(birth, world.last))
