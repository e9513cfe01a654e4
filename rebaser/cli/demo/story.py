"""Chooses the edits of the demo by rules, so that they have visible effects in any environment. It does no I/O."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from rebaser.cli.demo import model
from rebaser.cli.demo.environment import Distribution, Environment
from rebaser_core.updates import Update

GROWTH = 25_000_000  # bytes
LONGEST_CYCLE = 6  # maximum number of members of the cycle, if a cycle this short is possible


@dataclass(frozen=True, slots=True)
class Edit:
    """One step of the demo.

    `after` is the environment after the step. `watch` contains the ids whose values before and after the step are
    shown.
    """

    title: str
    updates: tuple[Update, ...]
    after: Environment
    watch: tuple[str, ...]


def edits(environment: Environment) -> list[Edit]:
    """Return the steps: a package grows, a requirement is added, a cycle is made and removed.

    A step is omitted if the environment does not allow it.
    """
    reach = _reach(environment)
    users = _users(reach)
    sound = [name for name in environment if name not in reach[name]]
    out: list[Edit] = []
    grown = most_required(environment)
    if grown is not None:
        environment = _grow(out, environment, grown, users[grown])
    pair = _new_requirement([name for name in sound if name != grown], reach, users)
    if pair is not None:
        environment = _require(out, environment, *pair, users[pair[0]])
    seen = {grown, *(pair or ())}  # for the cycle, prefer packages that no earlier step has used
    ring = _ring(environment, _reach(environment), seen)
    if ring is not None:
        _cycle(out, environment, *ring)
    return out


def most_required(environment: Environment) -> str | None:
    """Return the distribution that most others require, directly or indirectly, or None if all distributions are on
    cycles."""
    reach = _reach(environment)
    users = _users(reach)
    sound = [name for name in environment if name not in reach[name]]
    return max(sound, key=lambda name: (len(users[name]), name), default=None)


def _grow(out: list[Edit], environment: Environment, name: str, users: list[str]) -> Environment:
    new = replace(environment[name], size=environment[name].size + GROWTH)
    after = _with(environment, new)
    watch = tuple(f"dist/{user}/total" for user in (name, *users[:1]))
    out.append(
        Edit(f"{name} grows by {GROWTH // 1_000_000} MB", (model.size_update(new),), after, (*watch, "env/size"))
    )
    return after


def _require(out: list[Edit], environment: Environment, name: str, other: str, users: list[str]) -> Environment:
    new = environment[name].requiring(*environment[name].requires, other)
    after = _with(environment, new)
    watch = (f"dist/{name}/total", f"dist/{name}/depth", *(f"dist/{user}/total" for user in users[:1]))
    out.append(Edit(f"{name} now requires {other}", tuple(model.requirement_updates(new)), after, watch))
    return after


def _cycle(out: list[Edit], environment: Environment, low: str, high: str) -> None:
    bent = environment[low].requiring(*environment[low].requires, high)
    broken = _with(environment, bent)
    watch = (f"dist/{low}/closure", f"dist/{low}/total", "env/largest")
    made = Edit(
        f"{low} requires {high}, which requires {low}: a cycle", tuple(model.requirement_updates(bent)), broken, watch
    )
    mended = Edit(
        f"{low} no longer requires {high}: the cycle is gone",
        tuple(model.requirement_updates(environment[low])),
        environment,
        watch,
    )
    out += [made, mended]


def _with(environment: Environment, changed: Distribution) -> dict[str, Distribution]:
    return {**environment, changed.name: changed}


def _reach(environment: Environment) -> dict[str, frozenset[str]]:
    """Return, for each name, the names that it requires directly or indirectly."""
    reach: dict[str, frozenset[str]] = {}
    for name in environment:
        reached: set[str] = set()
        todo = list(environment[name].requires)
        while todo:
            required = todo.pop()
            if required not in reached:
                reached.add(required)
                todo.extend(environment[required].requires if required in environment else ())
        reach[name] = frozenset(reached)
    return reach


def _users(reach: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return, for each name, the other names that require it directly or indirectly."""
    return {name: sorted(other for other in reach if name in reach[other] and other != name) for name in reach}


def _new_requirement(
    sound: list[str], reach: Mapping[str, frozenset[str]], users: Mapping[str, list[str]]
) -> tuple[str, str] | None:
    """Return a pair (a, b) such that neither requires the other, many distributions require a, and b requires many.
    Return None if there is no such pair."""
    fits = ((a, b) for a in sound for b in sound if a != b and b not in reach[a] and a not in reach[b])
    return max(fits, key=lambda pair: (min(len(users[pair[0]]), len(reach[pair[1]])), *pair), default=None)


def _ring(
    environment: Environment, reach: Mapping[str, frozenset[str]], seen: AbstractSet[str | None]
) -> tuple[str, str] | None:
    """Return a pair (low, high) such that making `low` require `high` creates a cycle.

    Cycles of 3 to `LONGEST_CYCLE` members are preferred, and a `low` that is not in `seen`. Return None if there is no
    such pair.
    """

    def members(low: str, high: str) -> int:
        return sum(1 for name in reach[high] | {high} if name == low or low in reach.get(name, ()))

    pairs = [
        (low, high)
        for high in environment
        for low in reach[high]
        if low in environment and high not in reach[low] and low not in reach[low]
    ]
    sizes = [(members(low, high), low, high) for low, high in pairs]
    preferred = [candidate for candidate in sizes if 3 <= candidate[0] <= LONGEST_CYCLE] or sizes
    best = max([candidate for candidate in preferred if candidate[1] not in seen] or preferred, default=None)
    return None if best is None else best[1:]
