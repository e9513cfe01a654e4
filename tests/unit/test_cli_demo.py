"""The parts of the demo: the packages that it reads, its updates, the edits that it chooses, and its separate
evaluator."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser.cli.demo import model, player, run
from rebaser.cli.demo.check import CYCLE, FAILED, MISSING, Facts, differences, expected_values
from rebaser.cli.demo.environment import Distribution, read_environment
from rebaser.cli.demo.player import Player
from rebaser.cli.demo.screen import Screen
from rebaser.cli.demo.story import edits
from rebaser.cli.output import console
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_client import RebaserClient
from rebaser_core.commit import Applied, Commit, Delta, Kind
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set, Update, check_updates
from rebaser_core.values import Fault, State, Value


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def fresh_console() -> Iterator[None]:
    """A new console for each test, because a console keeps the stream with which it was created."""
    console.out.cache_clear()
    yield
    console.out.cache_clear()


@pytest.fixture(scope="module")
def here() -> tuple[dict[str, Distribution], Facts]:
    """What is installed here, in two readings, each of which takes half a second."""
    return read_environment(), Facts.read()


def environment(requires: Mapping[str, str]) -> dict[str, Distribution]:
    """Return distributions: `{"a": "b c"}` means that a requires b and c. The sizes are 1, 10, 100, ..."""
    return {
        name: Distribution(name, 10**number, tuple(sorted(names.split())))
        for number, (name, names) in enumerate(requires.items())
    }


def facts(requires: Mapping[str, str]) -> Facts:
    found = environment(requires)
    return Facts({n: d.size for n, d in found.items()}, {n: set(d.requires) for n, d in found.items()})


def test_two_independent_readings_of_this_environment_agree(here: tuple[dict[str, Distribution], Facts]) -> None:
    read, again = here
    assert {name: one.size for name, one in read.items()} == again.sizes
    assert {name: set(one.requires) for name, one in read.items()} == again.requires
    assert "pytest" in read
    assert "pluggy" in read["pytest"].requires
    assert read["pytest"].size > 0


def test_requirements_of_other_platforms_and_of_extras_do_not_count(
    here: tuple[dict[str, Distribution], Facts],
) -> None:
    assert "colorama" not in here[0]["pytest"].requires
    assert "pexpect" not in here[0]["pytest"].requires


def test_figures_of_a_diamond() -> None:
    wanted = expected_values(facts({"a": "b c", "b": "d", "c": "d", "d": ""}))
    assert wanted["dist/a/total"].value == 1111
    assert wanted["dist/a/closure"].value == {"a": 1, "b": 10, "c": 100, "d": 1000}
    assert wanted["dist/a/depth"].value == 2
    assert wanted["dist/a/indirect"].value == 1
    assert wanted["dist/d/below"].value is None
    assert wanted["dist/d/depth"].value == 0
    assert wanted["env/size"].value == 1111
    assert wanted["env/deepest"].value == 2


def test_depth_is_the_longest_way_down() -> None:
    assert expected_values(facts({"a": "b d", "b": "c", "c": "d", "d": ""}))["dist/a/depth"].value == 3


def test_a_cycle_and_what_needs_it_are_errors_and_the_rest_is_not() -> None:
    wanted = expected_values(facts({"a": "b", "b": "c", "c": "b", "d": ""}))
    assert wanted["dist/b/closure"].codes == wanted["dist/c/depth"].codes == {CYCLE}
    assert wanted["dist/a/closure"].codes == wanted["dist/b/total"].codes == wanted["env/largest"].codes == {FAILED}
    assert wanted["dist/d/total"].value == 1000
    assert wanted["env/size"].value == 1111


def test_a_requirement_that_is_not_installed_is_an_error() -> None:
    wanted = expected_values(facts({"a": "b", "b": "gone"}))
    assert wanted["dist/b/closure"].codes == wanted["dist/b/below"].codes == {MISSING}
    assert wanted["dist/b/depth"].codes == wanted["dist/a/closure"].codes == {FAILED}


def test_what_is_sent_is_what_is_checked() -> None:
    graph = {"a": "b c", "b": "c", "c": "", "d": "gone"}
    updates = check_updates(model.all_updates(environment(graph)))
    assert {update.id for update in updates} == expected_values(facts(graph)).keys()
    inputs = {id_ for update in updates if isinstance(update, Derive) for id_ in update.input_ids()}
    assert inputs - {update.id for update in updates} == {"dist/gone/closure", "dist/gone/depth"}


def right_values(found: Facts) -> dict[str, Value]:
    out = {}
    for id_, expected in expected_values(found).items():
        if expected.codes:
            members = " ".join(f"dist/{name}/closure" for name in found.sizes)
            out[id_] = Value(None, State.ERROR, Fault(min(expected.codes), members, id_))
        else:
            out[id_] = Value(expected.value, State.OK)
    return out


def test_every_kind_of_difference_is_found() -> None:
    found = facts({"a": "b", "b": "a", "c": ""})
    right = right_values(found)
    assert differences(right, found) == []
    closure = right["dist/a/closure"]
    assert closure.error is not None
    wrong = {
        "dist/c/size": Value(101, State.OK),
        "dist/c/total": Value(100.0, State.OK),
        "dist/c/depth": Value(0, State.STALE),
        "dist/a/total": Value(11, State.OK),
        "dist/a/closure": replace(closure, error=replace(closure.error, message="a cycle")),
        "dist/b/closure": Value(None, State.ERROR, replace(closure.error, code="failed")),
        "more": Value(1, State.OK),
    }
    for id_, value in wrong.items():
        [line] = differences({**right, id_: value}, found)
        assert line.startswith(id_)
    [line] = differences({id_: value for id_, value in right.items() if id_ != "env/size"}, found)
    assert line == "env/size: does not exist"


def test_the_story_of_a_common_environment_has_all_its_steps() -> None:
    base = environment({"app": "web db", "web": "core", "db": "core", "core": "", "tool": "lib", "lib": ""})
    titles = [edit.title for edit in edits(base)]
    assert len(titles) == 4
    assert "grows by" in titles[0]
    assert "now requires" in titles[1]
    assert "a cycle" in titles[2]
    assert "the cycle is gone" in titles[3]


names = st.sampled_from("abcdefg")


@settings(deadline=None)
@given(st.dictionaries(names, st.lists(names, max_size=3), max_size=7))
def test_every_story_does_what_it_says(graph: dict[str, list[str]]) -> None:
    base = environment({name: " ".join(set(requires)) for name, requires in graph.items()})
    now = {id_.id: id_ for id_ in model.all_updates(base)}
    rings = cyclic(base)
    for edit in edits(base):
        now.update({update.id: update for update in edit.updates})
        assert now == {update.id: update for update in model.all_updates(edit.after)}
        assert all(id_ in now for id_ in edit.watch)
        assert (cyclic(edit.after) > rings) == ("a cycle" in edit.title)
    if edits(base):
        assert cyclic(edits(base)[-1].after) == rings


def cyclic(found: Mapping[str, Distribution]) -> set[str]:
    known = Facts({n: d.size for n, d in found.items()}, {n: set(d.requires) for n, d in found.items()})
    return {name for name in found if name in known.reachable(name)}


def test_a_set_value_is_what_was_read() -> None:
    assert model.size_update(Distribution("a", 7, ())) == Set("dist/a/size", 7)


class InProcess:
    """Stands in for a client: it folds, plans and evaluates as a server does, without NATS and Spark."""

    def __init__(self, lie: str = "") -> None:
        self.state = ChangeSetState()
        self.lie = lie  # an id whose value is reported wrong

    async def enqueue_updates_with_reply(
        self, workspace: str, change_set: str, updates: Sequence[Update], **_: object
    ) -> EnqueueUpdatesResponse:
        self._fold(Kind.REBASE, self.state.covers, tuple(updates))
        at = self.state.last
        computed = await to_thread.run_sync(self._compute)  # The first call reads files.
        self._fold(Kind.DVU, at, computed)
        return EnqueueUpdatesResponse(RequestId("r"), workspace, change_set, Success(len(updates), at))

    def _compute(self) -> Delta:
        with self.state.view() as view:
            work = plan(view)
            while packets := work.next_wave():
                work.absorb([part for packet in packets for part in evaluate_packet(packet)])
            return work.computed()

    def _fold(self, kind: Kind, covers: int, delta: Delta) -> None:
        state = self.state
        sequence = state.last + 1
        state.fold(sequence, Commit("c", state.last, kind, 0, "o", Applied("s", sequence), covers, delta=delta))

    async def wait_covered(self, *_: object, **__: object) -> None:
        return None

    async def values(self, *_: str) -> dict[str, Value]:
        values = self.state.values()
        if self.lie:
            values[self.lie] = Value(-1, State.OK)
        return values


async def player_of(client: InProcess, monkeypatch: pytest.MonkeyPatch) -> Player:
    """Return a player without the scene of a branch, which needs a server: see integration/test_demo_branch.py."""
    monkeypatch.setattr(player, "most_required", lambda _: None)
    return Player(cast("RebaserClient", client), Screen(), anyio.Event(), *await run.read_inputs())


@pytest.mark.anyio
async def test_the_whole_story_on_this_environment_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = InProcess()
    playing = await player_of(client, monkeypatch)
    assert await playing.play()
    shown = capsys.readouterr().out
    assert "values equal those computed directly from importlib.metadata" in shown
    assert "error cycle: these depend on each other" in shown
    assert "\x1b" not in shown


@pytest.mark.anyio
@pytest.mark.parametrize("id_", ["env/size", "dist/pytest/closure", "dist/pytest/depth"])
async def test_one_wrong_figure_fails_the_demo(
    id_: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    here: tuple[dict[str, Distribution], Facts],
) -> None:
    async def read() -> tuple[dict[str, Distribution], Facts]:
        return deepcopy(here)

    monkeypatch.setattr(run, "read_inputs", read)
    playing = await player_of(InProcess(lie=id_), monkeypatch)
    assert not await playing.play()
    assert "WRONG: " in capsys.readouterr().out


@pytest.mark.anyio
async def test_the_loop_goes_on_while_files_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = threading.Event()

    def read() -> None:
        assert went_on.wait(60), "the loop waited for it"

    monkeypatch.setattr(run, "read_environment", read)
    monkeypatch.setattr(Facts, "read", read)
    async with anyio.create_task_group() as group:
        group.start_soon(run.read_inputs)
        await anyio.lowlevel.checkpoint()
        went_on.set()
