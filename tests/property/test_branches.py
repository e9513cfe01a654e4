"""Random requests to the model of branches: its checks hold, and each check fails when one of its rules is broken."""

import random
from typing import Any

import pytest

from tests.support.branch_books import RULES
from tests.support.branch_checks import Checks
from tests.support.branches import World
from tests.support.draws import drawing

NAMES = ("main", "a", "b", "c")
IDS = ("x", "y", "z")
STEPS = 120
SEEDS_UNTIL_BROKEN = 4_000
FIRST_SEEDS = {  # for rules that only few runs need
    "a conflict ends when its sides agree": 527,
    "conflicts outlive replays": 276,
    "theirs takes conflicts": 137,
    "taken ids leave conflicts": 214,
    "own applies are agreed": 125,
    "a source is rebased between applies": 181,
    "a name made anew is another set": 262,
    "conflicts are not applied": 116,
}


def random_request(rng: random.Random, world: World) -> tuple[str, dict[str, Any]]:
    """Draw a request. About one of three is refused."""
    name, other = rng.choice(NAMES), rng.choice(NAMES)
    position = None if rng.random() < 0.6 else rng.randint(max(0, world.last - 12), world.last)
    match rng.choices(
        ("edit", "create", "rebase", "apply", "settle", "revert", "mark", "checkpoint"), (30, 8, 16, 14, 8, 5, 4, 6)
    )[0]:
        case "edit":
            ids = rng.sample(IDS, rng.choice((1, 1, 2)))
            return "edit", {"name": name, "delta": {id_: rng.choice((None, 0, 1, 2)) for id_ in ids}, "at": position}
        case "create":
            child = rng.choice(NAMES[1:])
            return "create", {"name": child, "parent": other, "at": position, "sibling": rng.random() < 0.25}
        case "rebase":
            strategy = rng.choice(("record", "record", "record", "ours", "theirs"))
            onto = rng.random() < 0.15
            return "rebase", {"name": name, "strategy": strategy, "upto": None if onto else position, "onto": onto}
        case "apply":
            flags = {"strict": rng.random() < 0.2, "keep": rng.random() < 0.3}
            target = world.book(other).target if other in world.books else None
            return "apply", {"name": target or name, "source": other, "at": position, **flags}
        case "settle":
            return "settle", {}
        case "revert":
            first = rng.randint(max(1, world.last - 12), world.last + 1)
            return "revert", {"name": name, "first": first, "last": first + rng.choice((0, 0, 3))}
        case "mark":
            status = rng.choice(("open", "open", "abandoned", "deleted", None))
            return "mark", {"name": name, "status": status, "protected": rng.choice((None, None, True, False))}
    return "checkpoint", {"name": name}


def run(seed: int, broken: frozenset[str] = frozenset()) -> None:
    """Run the seed with and without checkpoints, and check that both give the same results."""
    rng = random.Random(seed)
    world, twin = World(broken), World(broken, checkpoints=False)
    checks = Checks(world)
    world.edit("main", {"x": 1, "y": 2})
    twin.edit("main", {"x": 1, "y": 2})
    others = Checks(twin)
    for _ in range(STEPS):
        method, arguments = random_request(rng, world)
        if method == "checkpoint":
            if arguments["name"] in world.books:
                world.checkpoint(arguments["name"])
            continue
        result, again = checks.request(method, **arguments), others.request(method, **arguments)
        if isinstance(result, str) or isinstance(again, str):
            assert result == again, "a checkpoint changed what is refused"
        else:
            assert (result.delta, result.conflicts, result.status) == (again.delta, again.conflicts, again.status)


@pytest.mark.parametrize("part", range(4))
def test_what_users_expect_of_branches_holds(request: pytest.FixtureRequest, part: int) -> None:
    runs = 1_500 if request.config.getoption("--long") else 60
    first = drawing(f"branches {part}").randrange(10**9)
    for seed in [*range(part * 15, part * 15 + 15), *range(first, first + runs)]:
        try:
            run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    first = FIRST_SEEDS.get(rule, 0)
    for seed in range(first, first + SEEDS_UNTIL_BROKEN):
        try:
            run(seed, frozenset({rule}))
        except AssertionError:
            return
    pytest.fail(f"nothing broke without {rule!r}")


def test_an_older_position_is_applied_after_a_later_replay_told_a_conflict() -> None:
    """The target took the definition of the applied position. So a later edit is a new edit, and the earlier conflict
    is over."""
    run(1000672)
