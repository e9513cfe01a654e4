"""Every figure of the demo once more, straight from `importlib.metadata` and by other means than the system's.

Shares no code with `environment` and `model`: sizes and requirements are read again, closures are plain reachability,
depths the longest path, and a cycle is what leads back to itself.
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
    """What is true of the environment, by distribution; edits of the demo are made here, too."""

    sizes: dict[str, int] = field(default_factory=dict)
    requires: dict[str, set[str]] = field(default_factory=dict)
    _reach: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "Facts":
        facts = cls()
        for found in metadata.distributions():
            if "Name" not in found.metadata:
                continue
            name = _normal(found.metadata["Name"])
            if name in facts.sizes:
                continue
            paths = [str(found.locate_file(path)) for path in found.files or []]
            facts.sizes[name] = sum(os.path.getsize(path) for path in paths if os.path.exists(path))  # noqa: PTH110, PTH202
            facts.requires[name] = set(_names(found))
        return facts

    def edited(self, sizes: Mapping[str, int], requires: Mapping[str, set[str]]) -> "Facts":
        """With these sizes and requirements instead."""
        return Facts({**self.sizes, **sizes}, {**self.requires, **requires})

    def reachable(self, start: str) -> set[str]:
        """What `start` leads to, itself only if it is on a cycle."""
        if start not in self._reach:
            found: set[str] = set()
            edge = set(self.requires.get(start, ()))
            while edge:
                found |= edge
                edge = {further for one in edge for further in self.requires.get(one, ())} - found
            self._reach[start] = found
        return self._reach[start]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(found: metadata.Distribution) -> Iterator[str]:
    for line in found.requires or []:
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if not wanted.marker or wanted.marker.evaluate({"extra": ""}):
            yield _normal(wanted.name)


@dataclass(frozen=True)
class Expected:
    """A value, or the codes of the errors that would be right."""

    value: Json = None
    codes: frozenset[str] = frozenset()

    def matches(self, value: Value) -> bool:
        if self.codes:
            return value.state is State.ERROR and value.error is not None and value.error.code in self.codes
        return value.state is State.OK and type(value.value) is type(self.value) and value.value == self.value


def expected_values(facts: Facts) -> dict[str, Expected]:
    """What every id of the demo must be."""
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
    codes = _trouble(facts, name, reach)
    if codes:
        yield f"{at}/closure", Expected(codes=codes)
        yield f"{at}/below", Expected(codes=codes)
        # `depth` is on the cycle together with `below`; total and indirect only look at it.
        yield f"{at}/depth", Expected(codes=codes if CYCLE in codes else frozenset({FAILED}))
        yield f"{at}/total", Expected(codes=frozenset({FAILED}))
        yield f"{at}/indirect", Expected(codes=frozenset({FAILED}))
        return
    closure = reach | {name}
    yield f"{at}/closure", Expected({one: facts.sizes[one] for one in closure})
    yield f"{at}/total", Expected(sum(facts.sizes[one] for one in closure))
    yield f"{at}/indirect", Expected(len(reach - facts.requires[name]))
    depth = _longest(facts, name)
    yield f"{at}/below", Expected(depth - 1 if facts.requires[name] else None)
    yield f"{at}/depth", Expected(depth)


def _trouble(facts: Facts, name: str, reach: set[str]) -> frozenset[str]:
    """Codes that what needs the requirements of `name` may have; none if all is well."""
    if name in reach:
        return frozenset({CYCLE})
    codes: set[str] = set()
    for one in facts.requires[name]:
        if one not in facts.sizes:
            codes.add(MISSING)
        else:
            below = facts.reachable(one)
            if any(other not in facts.sizes or other in facts.reachable(other) for other in below | {one}):
                codes.add(FAILED)
    return frozenset(codes)


def _longest(facts: Facts, name: str) -> int:
    """Edges on the longest path from `name`, level by level; there is no cycle under it."""
    depth, level = 0, {name}
    while level := {further for one in level for further in facts.requires[one]}:
        depth += 1
    return depth


def _largest(out: Mapping[str, Expected], facts: Facts, what: str) -> Expected:
    all_of_them = [out[f"dist/{name}/{what}"] for name in facts.sizes]
    if any(one.codes for one in all_of_them):
        return Expected(codes=frozenset({FAILED}))
    return Expected(max(one.value for one in all_of_them))  # type: ignore[type-var]


def differences(values: Mapping[str, Value], facts: Facts) -> list[str]:
    """One line for each id that is not what it must be; none: all figures agree."""
    wanted = expected_values(facts)
    lines = [f"{id_}: there, and should not be" for id_ in sorted(values.keys() - wanted.keys())]
    for id_, expected in wanted.items():
        value = values.get(id_)
        if value is None:
            lines.append(f"{id_}: not there")
        elif not expected.matches(value):
            right = f"error {'/'.join(sorted(expected.codes))}" if expected.codes else repr(expected.value)[:100]
            got = f"error {value.error.code}" if value.error else f"{value.state.value} {value.value!r}"[:120]
            lines.append(f"{id_}: {got}, should be {right}")
    return lines + _unnamed_members(values, facts)


def _unnamed_members(values: Mapping[str, Value], facts: Facts) -> list[str]:
    """Cycles whose error does not name its members, up to the ten that a message names."""
    lines: list[str] = []
    for name in facts.sizes:
        reach = facts.reachable(name)
        value = values.get(f"dist/{name}/closure")
        if name not in reach or value is None or value.error is None:
            continue
        members = sorted(f"dist/{one}/closure" for one in reach if name in facts.reachable(one))
        if unnamed := [one for one in members[:10] if one not in value.error.message]:
            lines.append(f"dist/{name}/closure: the error does not name {', '.join(unnamed)}")
    return lines
