"""The peers in the benchmark of updates compute the same values, and are stopped if they take too long; the tables show
all."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.dvu import Model, peers
from tests.benchmarks.dvu.__main__ import arguments, beside_others
from tests.benchmarks.dvu.cells import Cell, cells, minutes
from tests.benchmarks.dvu.lines import Lines
from tests.benchmarks.dvu.peers import in_process
from tests.benchmarks.dvu.peers.__main__ import make
from tests.benchmarks.dvu.peers.graph import Graph
from tests.benchmarks.dvu.report import report
from tests.benchmarks.evaluate import SHAPES, bare

pytestmark = pytest.mark.bench


def asked(*given: str) -> tuple[list[Cell], argparse.Namespace]:
    options = arguments(given)
    return cells(options), options


def test_what_is_asked_for_is_measured() -> None:
    few, _ = asked("--sizes", "2000,1000", "--shapes", "scale-free,dag")
    assert [one.name for one in few] == [
        f"alone {shape} {size}" for size in (1000, 2000) for shape in ("scale_free", "dag")
    ]
    judged, options = asked("--judged")
    every, all_options = asked("--everything")
    assert set(judged) < set(every)
    assert minutes(judged, options) < 20 < minutes(every, all_options)
    assert {one.size for one in judged if one.part == "alone" and not one.gated} == {1000, 100_000, 1_000_000}
    assert {one.size for one in judged if one.gated or one.part in ("end-to-end", "peers")} == {1000, 100_000}
    assert {one.peer for one in every} == {"", *peers.PEERS}
    for wrong in (("--shapes", "circle"), ("--peers", "excel")):
        with pytest.raises(SystemExit):
            asked(*wrong)


@pytest.mark.anyio
async def test_what_failed_at_a_smaller_size_is_not_tried() -> None:
    wanted, options = asked("--sizes", "1000,2000", "--shapes", "dag", "--peers", "dask")
    lines = Lines(None, lambda _: None)
    small, large = [one for one in wanted if one.part == "peers"]
    about = {"part": "peers", "peer": "dask", "shape": "dag"}
    lines.add([{"cell": small.name, **about, "size": 1000, "why": "> 60 s"}])
    await beside_others([small, large], lines, options)
    assert len(lines.all) == 2
    assert lines.all[1].items() >= {"cell": large.name, **about, "size": 2000}.items()
    assert "smaller" in lines.all[1]["why"]


@pytest.mark.parametrize("name", [one for one in peers.PEERS if one != "pyspark-joins"])
def test_a_peer_computes_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := peers.missing(name):
        pytest.skip(why)
    monkeypatch.setattr(in_process, "bare", lambda: bare().py_func)  # compiling takes longer than everything else
    for one in ("dependents", "reached"):
        monkeypatch.setattr(in_process, one, getattr(in_process, one).py_func)
    for shape in SHAPES:
        model = Model(shape, 200)
        peer = make(name, Graph.of(model))
        peer.build()
        np.testing.assert_allclose(peer.values(), model.computed(), rtol=1e-9)
        for which in ("all",) if name in peers.WHOLE else ("1", "3", "root", "all"):
            if len(at := model.edited(which)):
                model.edit(which)
                peer.apply(at, model.held[at])
                np.testing.assert_allclose(peer.values(), model.computed(), rtol=1e-9)
        peer.close()


def test_a_peer_has_a_process_of_its_own_and_is_stopped() -> None:
    about = {"part": "peers", "peer": "pydict", "shape": "islands", "size": 300}
    one, two = peers.measure("pydict", "islands", 300, edits=("1", "same", "all"), runs=1)
    assert (one["edit"], two["edit"], two["edited"]) == ("1", "all", 30)
    assert two.items() >= about.items()
    assert two["ms"] > 0
    stopped = peers.measure("pydict", "islands", 300, edits=("1",), runs=1, seconds=0.01)
    assert stopped == [about | {"why": "> 0.03 s"}]
    (failed,) = peers.measure("nobody", "islands", 300, edits=("1",), runs=1)
    assert failed["why"].startswith("failed: ")


def test_what_was_measured_is_not_measured_again_and_comes_out_as_tables(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    shown: list[object] = []
    both = {"shape": "dag", "size": 1000, "edit": "root", "affected": 900}
    alone = {"cell": "a", "part": "alone", "gated": False, "all": 80.0, "empty": 50.0, "ratio": 1.6} | both
    server = {"cell": "b", "part": "end-to-end", "ms": 95.0, "empty": 60.0} | both
    lines = Lines(path, shown.append)
    lines.add([alone])
    lines.add([server])
    assert shown == [alone, server]
    again = Lines(path, shown.append, until=0.0)
    assert again.all == [alone, server]
    assert "a" in again
    assert "c" not in again
    assert lines.wants("c")
    assert not again.wants("a")
    assert not again.wants("c")
    again.add(
        [
            {"cell": "c", "part": "peers", "peer": "dask", "shape": "dag", "size": 1000, "why": "> 60 s"},
            {"cell": "d", "part": "peers", "peer": "pydict", "ms": 0.5} | both,
        ]
    )
    assert len(path.read_text().splitlines()) == 4
    assert json.loads(path.read_text().splitlines()[0]) == alone
    text = report(again.all, "this machine")
    assert "this machine" in text
    assert "| random DAG | 80.0 (1.60x; 11.2 k/s) |" in text
    assert "| random DAG | 95.0 (+15; 9.5 k/s) |" in text
    assert "| rebaser | 80.0 |" in text
    assert "| pydict | 0.5 |" in text
    assert "| dask | > 60 s |" in text
