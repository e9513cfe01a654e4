"""Computes every value of the demo again, directly from `importlib.metadata` and without Rebaser.

To be independent, this module shares no code with `environment` and `model`. It reads sizes and requirements itself. A
closure is plain reachability, a depth is the length of the longest path, and a distribution is on a cycle if it can be
reached from itself.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

from rebaser_core.values import Json, State, Value

CYCLE, FAILED, MISSING = "cycle", "failed_input", "missing_input"


@dataclass
class Facts:
    """Sizes and requirements by distribution, with the edits of the demo applied."""

    sizes: dict[str, int] = field(default_factory=dict)
    requires: dict[str, set[str]] = field(default_factory=dict)
    _reach: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "Facts":
        """Read the installed distributions. This reads thousands of files."""
        facts = cls()
        for installed in metadata.distributions():
            if "Name" not in installed.metadata:
                continue
            name = _normalized(installed.metadata["Name"])
            if name in facts.sizes:
                continue
            paths = [str(installed.locate_file(path)) for path in installed.files or []]
            facts.sizes[name] = sum(os.path.getsize(path) for path in paths if os.path.exists(path))  # noqa: PTH110, PTH202
            facts.requires[name] = set(_required_names(installed))
        return facts

    def edited(self, sizes: Mapping[str, int], requires: Mapping[str, set[str]]) -> "Facts":
        """Return a copy in which `sizes` and `requires` replace the entries of the same distributions."""
        return Facts({**self.sizes, **sizes}, {**self.requires, **requires})

    def reachable(self, start: str) -> set[str]:
        """Return the distributions that `start` requires, directly or indirectly. `start` itself is included only if it
        is on a cycle."""
        if start not in self._reach:
            reached: set[str] = set()
            frontier = set(self.requires.get(start, ()))
            while frontier:
                reached |= frontier
                frontier = {further for name in frontier for further in self.requires.get(name, ())} - reached
            self._reach[start] = reached
        return self._reach[start]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _required_names(installed: metadata.Distribution) -> Iterator[str]:
    for line in installed.requires or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
            yield _normalized(requirement.name)


@dataclass(frozen=True)
class Expected:
    """The expected value or, if an error is expected, the codes that the error may have."""

    value: Json = None
    codes: frozenset[str] = frozenset()

    def matches(self, value: Value) -> bool:
        if self.codes:
            return value.state is State.ERROR and value.error is not None and value.error.code in self.codes
        return value.state is State.OK and type(value.value) is type(self.value) and value.value == self.value


def expected_values(facts: Facts) -> dict[str, Expected]:
    """Return the expected value of every id of the demo."""
    out: dict[str, Expected] = {}
    for name, size in facts.sizes.items():
        at = f"dist/{name}"
        out[f"{at}/size"] = Expected(size)
        out[f"{at}/self"] = Expected({name: size})
        out[f"{at}/requires"] = Expected(sorted(facts.requires[name]))  # type: ignore[arg-type]
        out.update(_derived(facts, name, at))
    out["env/count"] = Expected(len(facts.sizes))
    out["env/size"] = Expected(sum(facts.sizes.values()))
    out["env/largest"] = _largest(out, facts, "total")
    out["env/deepest"] = _largest(out, facts, "depth")
    return out


def _derived(facts: Facts, name: str, at: str) -> Iterator[tuple[str, Expected]]:
    reach = facts.reachable(name)
    codes = _error_codes(facts, name, reach)
    if codes:
        yield f"{at}/closure", Expected(codes=codes)
        yield f"{at}/below", Expected(codes=codes)
        # `depth` and `below` are themselves on the cycle, whereas `total` and `indirect` only depend on it.
        yield f"{at}/depth", Expected(codes=codes if CYCLE in codes else frozenset({FAILED}))
        yield f"{at}/total", Expected(codes=frozenset({FAILED}))
        yield f"{at}/indirect", Expected(codes=frozenset({FAILED}))
        return
    closure = reach | {name}
    yield f"{at}/closure", Expected({member: facts.sizes[member] for member in closure})
    yield f"{at}/total", Expected(sum(facts.sizes[member] for member in closure))
    yield f"{at}/indirect", Expected(len(reach - facts.requires[name]))
    depth = _longest(facts, name)
    yield f"{at}/below", Expected(depth - 1 if facts.requires[name] else None)
    yield f"{at}/depth", Expected(depth)


def _error_codes(facts: Facts, name: str, reach: set[str]) -> frozenset[str]:
    """Return the error codes that a value computed from the requirements of `name` may have, or an empty set if no
    error is expected."""
    if name in reach:
        return frozenset({CYCLE})
    codes: set[str] = set()
    for required in facts.requires[name]:
        if required not in facts.sizes:
            codes.add(MISSING)
        else:
            below = facts.reachable(required)
            if any(other not in facts.sizes or other in facts.reachable(other) for other in below | {required}):
                codes.add(FAILED)
    return frozenset(codes)


def _longest(facts: Facts, name: str) -> int:
    """Return the number of edges on the longest path from `name`. No cycle may be reachable from `name`."""
    depth, level = 0, {name}
    while level := {further for member in level for further in facts.requires[member]}:
        depth += 1
    return depth


def _largest(out: Mapping[str, Expected], facts: Facts, what: str) -> Expected:
    inputs = [out[f"dist/{name}/{what}"] for name in facts.sizes]
    if any(expected.codes for expected in inputs):
        return Expected(codes=frozenset({FAILED}))
    return Expected(max(expected.value for expected in inputs))  # type: ignore[type-var]


def differences(values: Mapping[str, Value], facts: Facts) -> list[str]:
    """Return a line for each id whose value differs from the expected value."""
    all_expected = expected_values(facts)
    lines = [f"{id_}: exists, but should not" for id_ in sorted(values.keys() - all_expected.keys())]
    for id_, expected in all_expected.items():
        value = values.get(id_)
        if value is None:
            lines.append(f"{id_}: does not exist")
        elif not expected.matches(value):
            right = f"error {'/'.join(sorted(expected.codes))}" if expected.codes else repr(expected.value)[:100]
            got = f"error {value.error.code}" if value.error else f"{value.state.value} {value.value!r}"[:120]
            lines.append(f"{id_}: {got}, should be {right}")
    return lines + _unnamed_members(values, facts)


def _unnamed_members(values: Mapping[str, Value], facts: Facts) -> list[str]:
    """Return a line for each cycle error whose message omits any of the first ten members of the cycle."""
    lines: list[str] = []
    for name in facts.sizes:
        reach = facts.reachable(name)
        value = values.get(f"dist/{name}/closure")
        if name not in reach or value is None or value.error is None:
            continue
        members = sorted(f"dist/{member}/closure" for member in reach if name in facts.reachable(member))
        if unnamed := [member for member in members[:10] if member not in value.error.message]:
            lines.append(f"dist/{name}/closure: the error does not name {', '.join(unnamed)}")
    return lines
