"""Turns the environment into updates. Each distribution `d` has these values:

    dist/d/size      set      bytes on disk
    dist/d/requires  set      names
    dist/d/self      object   {d: size}
    dist/d/closure   merge    {name: size} of d and of all that it requires, directly or not
    dist/d/total     sum      size of the closure
    dist/d/indirect  cel      number of members of the closure that d does not require directly
    dist/d/below     max      greatest depth of a requirement of d, null if d requires nothing
    dist/d/depth     cel      number of levels of requirements below d

The following values describe all distributions together:

    env/count        count    number of distributions
    env/size         sum      their size
    env/largest      max      the largest total
    env/deepest      max      the greatest depth
"""

from collections.abc import Iterator

from rebaser.cli.demo.environment import Distribution, Environment
from rebaser_core.updates import Derive, Set, Update

INDIRECT = "size(closure) - size(requires) - 1"
DEPTH = "below == null ? 0 : below + 1"


def all_updates(environment: Environment) -> list[Update]:
    """Return the updates that create the whole graph in an empty change set."""
    updates: list[Update] = []
    for distribution in environment.values():
        updates.append(size_update(distribution))
        updates.extend(_own(distribution.name))
        updates.extend(requirement_updates(distribution))
    names = list(environment)
    updates.append(Derive("env/count", "count", {"values": _all("size", names)}))
    updates.append(Derive("env/size", "sum", {"values": _all("size", names)}))
    updates.append(Derive("env/largest", "max", {"values": _all("total", names)}))
    updates.append(Derive("env/deepest", "max", {"values": _all("depth", names)}))
    return updates


def size_update(distribution: Distribution) -> Update:
    """Return the update for the size of a distribution."""
    return Set(f"dist/{distribution.name}/size", distribution.size)


def requirement_updates(distribution: Distribution) -> list[Update]:
    """Return the updates for the requirements of a distribution."""
    name, requires = distribution.name, distribution.requires
    return [
        Set(f"dist/{name}/requires", list(requires)),
        Derive(f"dist/{name}/closure", "merge", {"maps": [f"dist/{name}/self", *_all("closure", requires)]}),
        Derive(f"dist/{name}/below", "max", {"values": _all("depth", requires)}),
    ]


def _own(name: str) -> Iterator[Update]:
    at = f"dist/{name}"
    yield Derive(f"{at}/self", "object", {name: f"{at}/size"})
    yield Derive(f"{at}/total", "sum", {"values": f"{at}/closure"})
    yield Derive(
        f"{at}/indirect", "cel", {"closure": f"{at}/closure", "requires": f"{at}/requires"}, {"expr": INDIRECT}
    )
    yield Derive(f"{at}/depth", "cel", {"below": f"{at}/below"}, {"expr": DEPTH})


def _all(what: str, names: list[str] | tuple[str, ...]) -> list[str]:
    return [f"dist/{name}/{what}" for name in names]
