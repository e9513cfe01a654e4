"""With patterns as inputs and values that are added and removed, incremental updates give the values of a full
recompute, and of a simple evaluator."""

from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Input, Match, Remove, Set, Unset, Update
from tests.support.forcing import Logged, forcing
from tests.support.graphs import run_here
from tests.support.incremental import check_at_rest
from tests.support.random_input import examples

IDS = ["s/1", "s/2", "s/t/1", "t/1", "d/1", "d/2", "d/e/1", "e/1", "top"]
# By level: a value whose patterns match only values of the levels above is in no cycle.
GLOBS = ["s/*", "s/**", "*/1", "**1", "s/*/1", "d/*", "d/**", "**/e/*", "t/1", "z/*", "t*", "*"]

LIMITS = forcing(
    Thresholds(packet_bytes=1),
    Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0),
    Thresholds(
        full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0, interpreted_max=-1
    ),
    Thresholds(interpreted_max=-1),
)

ids = st.sampled_from(IDS)
globs = st.sampled_from(GLOBS).map(Match)
values = st.sampled_from([0, 1, 1.0, True, "x", None, [1]])
functions = st.sampled_from(["count", "list", "sum", "coalesce", "max", "by_id", "by_id"])


def derived(owners: list[str], some: list[str]) -> st.SearchStrategy[Update]:
    """Draw definitions of `owners` whose inputs include patterns."""
    inputs = st.lists(ids | st.sampled_from(some).map(Match), max_size=3).map(tuple)
    # Otherwise it would be read back as a single pattern.
    inputs = inputs.filter(lambda some: list(map(type, some)) != [Match])
    named: st.SearchStrategy[dict[str, Input | tuple[Input, ...]]] = st.fixed_dictionaries(
        {"all": st.sampled_from(some).map(Match)}, optional={"more": inputs, "one": ids}
    )
    return st.builds(Derive, st.sampled_from(owners), functions, named)


sources = st.sampled_from(["s/1", "s/2", "s/t/1", "t/1"])
tame = st.one_of(
    st.builds(Set, sources, values),
    st.builds(Set, sources, values),
    st.builds(Unset, sources),
    st.builds(Remove, sources),
    st.builds(
        Derive,
        st.sampled_from(["d/1", "d/2", "d/e/1"]),
        functions,
        st.fixed_dictionaries({"all": st.sampled_from(["s/*", "s/**", "t/1", "s/*/1", "t*/*"]).map(Match)}),
    ),
    st.builds(
        Derive, st.sampled_from(["e/1", "top"]), functions, st.fixed_dictionaries({"all": st.just(Match("d/**"))})
    ),
    st.builds(Remove, st.sampled_from(["d/1", "d/2", "d/e/1"])),
)
updates: st.SearchStrategy[Update] = st.one_of(
    tame,
    tame,
    tame,
    derived(IDS[4:], GLOBS),
    derived(IDS, GLOBS),
    st.builds(Remove, ids),
    st.builds(Set, ids, values),
)
edits = st.lists(updates, min_size=1, max_size=3)
FIRST: list[Update] = [
    Set("s/1", 1),
    Set("s/t/1", 2),
    Derive("d/1", "sum", {"all": Match("s/*")}),
    Derive("d/e/1", "list", {"all": Match("s/**")}),
    Derive("top", "list", {"all": (Match("d/**"), "s/1")}),
    Derive("map", "by_id", {"all": Match("s/**"), "more": ("d/1", Match("t/*"))}),
]


@examples(0.6)
@given(st.lists(edits, min_size=1, max_size=8), LIMITS)
def test_edit_and_update_gives_what_a_full_recompute_gives(script: list[list[Update]], limits: Thresholds) -> None:
    with forced(limits):
        book = Logged(FIRST)
        book.update()
        for step in script:
            book.edit(*step)
            owed, before = book.state.stale(), book.values()
            book.update()
            check_at_rest(book)
            for id_, value in book.values().items():  # a value that no commit marked as stale has not changed
                assert id_ in owed or before[id_] == value


@examples(0.4)
@given(st.lists(edits, min_size=2, max_size=6), LIMITS)
def test_edits_while_an_update_is_planned_are_caught_by_the_next(
    script: list[list[Update]], limits: Thresholds
) -> None:
    with forced(limits):
        book = Logged(FIRST)
        for step in script:
            with book.state.view() as view:
                book.edit(*step)
                book.commit(run_here(view), view.sequence)
        while book.state.owes:
            book.update()
        check_at_rest(book)
