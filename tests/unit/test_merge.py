"""Patches are merged id by id for all combinations of definitions, and reverting commits undoes them."""

import itertools
import random
from collections.abc import Sequence

import pytest

from rebaser_core.branches.merge import Definition, Merged, NetEffect, PatchEntry, same_definition
from rebaser_core.updates import Derive, Match, Remove, Set, Unset, Update

DEFINITIONS: Sequence[Definition] = [
    None,
    Unset("a"),
    Set("a", None),
    Set("a", 1),
    Set("a", 1.0),
    Set("a", True),
    Set("a", [1, {"k": 1}]),
    Set("a", [1, {"k": 1.0}]),
    Derive("a", "sum", {"x": "b"}),
    Derive("a", "sum", {"x": ("b",)}),
    Derive("a", "sum", {"x": Match("b")}),
    Derive("a", "sum", {"x": "b", "y": "c"}),
    Derive("a", "sum", {"y": "c", "x": "b"}),
    Derive("a", "sum", {"x": "b"}, {"p": 1}),
    Derive("a", "sum", {"x": "b"}, {"p": 1.0}),
]


def test_definitions_are_the_same_to_the_last_type() -> None:
    for left, right in itertools.product(range(len(DEFINITIONS)), repeat=2):
        assert same_definition(DEFINITIONS[left], DEFINITIONS[right]) == (left == right)


def test_every_merge_of_three_definitions() -> None:
    """The expectation is stated without the rule: one side changed, the other did not, or both agree."""
    for base, ours, theirs in itertools.product(range(len(DEFINITIONS)), repeat=3):
        merged = Merged()
        merged.add({"a": DEFINITIONS[ours]}.get, [PatchEntry("a", DEFINITIONS[base], DEFINITIONS[theirs])])
        if ours == theirs or base == theirs:
            expected: tuple[int, int] = (0, 0)  # nothing changes
        else:
            expected = (1, 0) if ours == base else (0, 1)
        assert (len(merged.updates), len(merged.conflicts)) == expected
        for update in merged.updates:
            assert repr(update) == repr(DEFINITIONS[theirs] or Remove("a"))
        for conflict in merged.conflicts:
            sides = (conflict.base, conflict.ours, conflict.theirs)
            assert repr(sides) == repr((DEFINITIONS[base], DEFINITIONS[ours], DEFINITIONS[theirs]))


@pytest.mark.parametrize("seed", range(50))
def test_reverting_commits_gives_what_stood_before_them(seed: int) -> None:
    """Compared with plain dictionaries: all commits of a range, with and without later edits."""
    rng = random.Random(seed)
    books: list[dict[str, Update]] = [{}]
    effects: list[tuple[list[Update], list[Update]]] = []
    for number in range(20):
        delta = [_edit(rng, number) for _ in range(rng.randint(0, 4))]
        effects.append(([books[-1][id_] for id_ in {one.id for one in delta} if id_ in books[-1]], delta))
        book = dict(books[-1])
        for update in delta:
            book[update.id] = update
            if isinstance(update, Remove):
                del book[update.id]
        books.append(book)
    for first, last in itertools.combinations(range(21), 2):
        effect = NetEffect()
        for before, delta in effects[first:last]:
            effect.add(before, delta)
        merged = Merged()
        merged.add(books[-1].get, effect.inverse())
        changed = {one.id for _, delta in effects[first:last] for one in delta}
        later = {id_ for id_ in changed if repr(books[-1].get(id_)) != repr(books[last].get(id_))}
        wanted = {id_: books[first].get(id_) for id_ in changed}
        moved = {id_ for id_ in changed if repr(books[last].get(id_)) != repr(wanted[id_])}
        differs = {id_ for id_ in moved & later if repr(books[-1].get(id_)) != repr(wanted[id_])}
        assert {one.id for one in merged.conflicts} == differs
        assert {one.id: repr(one) for one in merged.updates} == {
            id_: repr(wanted[id_] or Remove(id_)) for id_ in moved - later
        }


def _edit(rng: random.Random, number: int) -> Update:
    id_ = rng.choice("abcde")
    choice = rng.random()
    if choice < 0.5:
        return Set(id_, rng.choice([number, number % 3, 1, 1.0, True]))
    if choice < 0.7:
        return Derive(id_, "sum", {"x": rng.choice("fg")})
    return Unset(id_) if choice < 0.8 else Remove(id_)
