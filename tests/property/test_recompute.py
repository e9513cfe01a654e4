"""After a function has changed, a recompute gives the values of a full evaluation, whatever is edited in between."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rebaser.dvu.functions.base import Function, Inputs, Params
from rebaser.dvu.functions.registry import FunctionRegistry, registry
from rebaser.dvu.planning import planner
from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.worker import evaluate
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Recompute, Set, Update
from rebaser_core.values import Json
from tests.support import graphs
from tests.support.forcing import Logged
from tests.support.graphs import run_here
from tests.support.incremental import FIRST, IDS, LIMITS, Step, check_at_rest, edit_book, edits
from tests.support.random_input import examples


class Drift:
    """A function `drift` whose code differs from release to release: its result lists its inputs and the release."""

    def __init__(self) -> None:
        self.release = self.calls = 0

    def __call__(self, inputs: Inputs, params: Params) -> Json:
        self.calls += 1
        return [self.release, *inputs.values()]


@contextmanager
def drifting() -> Iterator[Drift]:
    """Install `drift`."""
    drift = Drift()
    function = Function(name="drift", call=drift, fingerprint="drift")
    found = FunctionRegistry(MappingProxyType({**registry().functions, "drift": function}), MappingProxyType({}))
    with (
        patch.object(planner, "registry", lambda: found),
        patch.object(evaluate, "registry", lambda: found),
        patch.object(graphs, "registry", lambda: found),
    ):
        yield drift


ids = st.sampled_from(IDS)
drifts: st.SearchStrategy[Update] = st.builds(
    lambda id_, given: Derive(id_, "drift", {str(at): one for at, one in enumerate(given)}),
    ids,
    st.lists(ids, max_size=2),
)
some_edits = st.lists(st.one_of(drifts, edits.map(lambda some: some[0])), max_size=3)
DRIFTING = [Derive("d", "drift", {"x": "a"}), Derive("g", "drift", {"x": "d"})]
EVERYTHING, THOSE = Recompute(), Recompute("drift")


@examples(0.6)
@given(
    st.lists(some_edits, max_size=3),
    some_edits,
    st.sampled_from([EVERYTHING, THOSE]),
    some_edits,
    LIMITS,
)
def test_what_is_recomputed_is_what_a_full_evaluation_makes(
    before: list[Step], along: Step, asked: Recompute, later: Step, limits: Thresholds
) -> None:
    """The recompute is requested together with edits, before further edits, and once more during an update."""
    with drifting() as drift, forced(limits):
        book = Logged([*FIRST, *DRIFTING])
        book.update()
        for step in before:
            edit_book(book, step)
            book.update()
        drift.release = 1
        edit_book(book, along, asked)
        edit_book(book, later)
        book.update()
        check_at_rest(book)

        book.edit(Set("b", "other"))
        with book.state.view() as view:
            computed = run_here(view)
            drift.release = 2
            edit_book(book, along, asked)
            book.commit(computed, view.sequence)
        assert book.state.owes
        book.update()
        check_at_rest(book)


@examples(0.6)
@given(st.lists(some_edits, max_size=3), st.sampled_from([EVERYTHING, THOSE]), LIMITS)
def test_where_nothing_changed_nothing_is_written(before: list[Step], asked: Recompute, limits: Thresholds) -> None:
    with drifting(), forced(limits):
        book = Logged([*FIRST, *DRIFTING])
        book.update()
        for step in before:
            edit_book(book, step)
            book.update()
        book.edit(recompute=[asked])
        assert book.state.owes
        assert tuple(book.update()) == ()
        check_at_rest(book)


def test_what_depends_on_it_is_computed_only_if_it_changed() -> None:
    graph: list[Update] = []
    for at in range(300):
        graph += [
            Set(f"a{at}", at),
            Derive(f"b{at}", "sum", {"x": f"a{at}"}),
            Derive(f"c{at}", "drift", {"x": f"b{at}"}),
        ]
    with drifting() as drift:
        book = Logged(graph)
        book.update()
        drift.calls = 0
        book.edit(recompute=[Recompute("sum")])
        assert tuple(book.update()) == ()
        assert drift.calls == 0
        book.edit(Set("a7", 1000), recompute=[Recompute("sum")])
        assert {one.id for one in book.update()} == {"b7", "c7"}
        assert drift.calls == 1
        drift.release = 1
        book.edit(recompute=[THOSE])
        assert {one.id for one in book.update()} == {f"c{at}" for at in range(300)}
        check_at_rest(book)


def test_a_value_of_another_function_is_left_alone() -> None:
    with drifting() as drift:
        book = Logged([Set("a", 1), Derive("b", "drift", {"x": "a"}), Derive("c", "sum", {"x": "a"})])
        book.update()
        drift.release = 1
        book.edit(recompute=[Recompute("sum")])
        book.update()
        assert book.values()["b"].value == [0, 1]


def test_all_is_edited_and_recomputed_at_once() -> None:
    """The change set is small enough for Python, but the edits and the recompute together are not."""
    graph: list[Update] = [Set(f"a{at}", at) for at in range(150)]
    graph += [Derive(f"b{at}", "sum", {"x": f"a{at}"}) for at in range(140)]
    assert len(graph) < Thresholds().interpreted_max < len(graph) + 140
    book = Logged(graph)
    book.update()
    book.edit(*graph, recompute=[EVERYTHING])
    book.update()
    check_at_rest(book)


def test_a_plan_of_the_full_graph_computes_what_a_recompute_asks_for() -> None:
    limits = Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0)
    with drifting() as drift, forced(limits):
        book = Logged([*FIRST, *DRIFTING])
        book.update()
        drift.release = 1
        book.edit(recompute=[THOSE])
        with book.state.view() as view:
            assert isinstance(planner.plan(view), FullGraphPlan)
        book.update()
        check_at_rest(book)
