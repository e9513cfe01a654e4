"""GlobSet, compared with a matcher that tries all possibilities."""

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.state.patterns.globs import GlobSet, matcher
from rebaser_core.state.patterns.id_tree import IdTree

texts = st.text(alphabet="ab/", min_size=1, max_size=8)
globs = st.lists(st.sampled_from(["a", "b", "/", "*", "**", "***"]), min_size=1, max_size=7).map("".join)


@cache
def matches(glob: str, text: str) -> bool:
    """Return whether the pattern matches, by recursion over the lengths of each run."""
    if not glob:
        return not text
    if glob.startswith("**"):
        rest = glob.lstrip("*")
        return any(matches(rest, text[at:]) for at in range(len(text) + 1))
    if glob[0] == "*":
        return any(matches(glob[1:], text[at:]) for at in range(len(text) + 1) if "/" not in text[:at])
    return text[:1] == glob[0] and matches(glob[1:], text[1:])


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        (
            "cart/*/price",
            ["cart/1/price", "cart//price"],
            ["cart/1/2/price", "cart/price", "xcart/1/price"],
        ),
        ("cart/**", ["cart/1", "cart/1/2", "cart/"], ["cart", "carts/1"]),
        ("**/price", ["a/price", "a/b/price", "/price"], ["price", "a/price/x"]),
        ("a**b*c", ["abc", "a/x/bc", "axbxc"], ["abc/", "ab/c"]),
        ("a.b", ["a.b"], ["axb"]),
        ("[a]?", ["[a]?"], ["a", "ab"]),
        ("*", ["a", "é", "a b"], ["a/b", "/"]),
    ],
)
def test_a_run_stays_in_its_segment_and_a_double_one_does_not(glob: str, yes: list[str], no: list[str]) -> None:
    assert [one for one in yes + no if matcher(glob)(one)] == yes


@given(globs, st.lists(texts, max_size=10))
def test_a_pattern_matches_what_trying_everything_finds(glob: str, ids: list[str]) -> None:
    assert [bool(matcher(glob)(id_)) for id_ in ids] == [matches(glob, id_) for id_ in ids]


def test_all_short_patterns_match_what_trying_everything_finds() -> None:
    ids = ["".join(one) for size in range(1, 6) for one in product("a/b", repeat=size)]
    for size in range(1, 4):
        for parts in product(["a", "/", "*", "**", "b"], repeat=size):
            glob = "".join(parts)
            assert [id_ for id_ in ids if matcher(glob)(id_)] == [id_ for id_ in ids if matches(glob, id_)], glob


@pytest.mark.parametrize("glob", ["*a" * 200 + "*b", "**a" * 150 + "**b", "**a*" * 100 + "b"])
def test_a_hostile_pattern_does_not_take_for_ever(glob: str) -> None:
    assert not matcher(glob)("a" * 511 + "c")


@given(st.lists(globs, max_size=12), st.data())
def test_patterns_are_a_set_that_finds_who_matches(given_: list[str], data: st.DataObject) -> None:
    patterns = GlobSet()
    there: set[str] = set()
    for glob in given_:
        patterns.add(glob)
        there.add(glob)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(there)))
            patterns.remove(gone)
            there.remove(gone)
    assert len(patterns) == len(there)
    for id_ in data.draw(st.lists(texts, max_size=6)):
        assert sorted(patterns.matching(id_)) == sorted(glob for glob in there if matches(glob, id_))
    for glob in sorted(there):
        patterns.remove(glob)
    assert not patterns
    assert patterns._root.empty


@given(st.lists(texts, max_size=15), st.lists(globs, max_size=8), st.data())
def test_names_are_a_set_that_finds_what_matches(ids: list[str], some: list[str], data: st.DataObject) -> None:
    names = IdTree()
    there: set[str] = set()

    def cover() -> None:
        for glob in some if data.draw(st.booleans()) else ():
            names.cover([glob], lambda: there)
            assert names.matching(glob) == sorted(id_ for id_ in there if matches(glob, id_))

    cover()
    for id_ in ids:
        names.add(id_)
        there.add(id_)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(there)))
            names.remove(gone)
            there.remove(gone)
        cover()
    for id_ in sorted(there):
        names.remove(id_)
    assert (names._leaves, names._inner) == ({}, {})


def test_a_name_is_found_however_deep_it_is_and_whatever_else_is_in_its_folders() -> None:
    for levels in range(1, 5):
        globs_ = ["/".join(parts) for parts in product(["a", "*", "b*", "**"], repeat=levels)]
        for id_ in ("/".join(parts) for size in range(1, 5) for parts in product("ab", repeat=size)):
            names = IdTree()
            names.cover(globs_, [id_].copy)  # Each folder contains only one folder or one name.
            found = [glob for glob in globs_ if names.matching(glob)]
            assert found == [glob for glob in globs_ if matcher(glob)(id_)], id_


def test_names_hold_what_may_match() -> None:
    ids = ["cart/1/price", "cart/2", "vat", "shop/1", "a/b"]
    names = IdTree()
    for globs_, held in (
        (["cart/*", "cart/**"], {"cart/1/price", "cart/2"}),
        (["v*", "cart/1/*"], {"cart/1/price", "cart/2", "vat"}),
        (["*/1"], set(ids)),
    ):
        names.cover(globs_, lambda: ids)
        assert set(names.matching("**")) == held
