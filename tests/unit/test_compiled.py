"""Tests when compiled code is called, and where it is cached; `property/test_compiled.py` checks its results."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import linker, loader
from rebaser.dvu.functions import Function, FunctionRegistry, registry
from rebaser.dvu.wire.column import NEVER_COMPUTED
from rebaser.dvu.wire.packet import DefinitionTemplate, Item, PacketBuilder, Results
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core import thresholds
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Json
from tests.benchmarks.evaluate import graph


def numbers(nodes: int, *, odd: int = 0) -> PacketBuilder:
    """Return a chain of sums. Every other of the first `odd` nodes is a text that nothing uses."""
    packet = PacketBuilder(
        1, fingerprint.code(), {"sum": "", "concat": ""}, constants=[1, 0.5], dirty=bytearray(b"\1" * nodes)
    )
    packet.templates = [DefinitionTemplate("sum", (("x", 2),), {}), DefinitionTemplate("concat", (("x", 2),), {})]
    last = -1
    for node in range(nodes):
        text = node < odd and node % 2 == 0
        packet.template.append(int(text))
        packet.refs += [~0, ~1] if text else [last, ~1] if last >= 0 else [~0, ~1]
        last = last if text else node
    packet.old = [NEVER_COMPUTED] * nodes
    return packet


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes each call of compiled code computes."""
    done: list[int] = []
    sweep_ = linker.LinkedPrograms.sweep

    def noted(self: linker.LinkedPrograms, state: Any, order: Any, at: int, end: int) -> int:
        stopped = sweep_(self, state, order, at, end)
        done.append(stopped - at)
        return stopped

    monkeypatch.setattr(linker.LinkedPrograms, "sweep", noted)
    return done


def test_a_chain_is_one_call(calls: list[int]) -> None:
    assert loader.load()
    [data] = evaluate_packet(numbers(5000).encode())
    assert calls == [5000]
    assert Results.decode(data).values[4999] == 1.5 + 0.5 * 4999


def test_what_fails_leaves_no_number_behind_that_compiled_code_reads(calls: list[int]) -> None:
    """The first value fails, and so do all that depend on it, even across a value that was left to Python."""
    assert loader.load()
    packet = numbers(5000)
    packet.functions["abs"] = ""
    packet.constants.append("text")
    packet.templates.append(DefinitionTemplate("abs", (("x", 1),), {}))
    packet.template[0] = 2
    packet.refs = [~2, *packet.refs[2:]]
    packet.refs[-2] = 0  # the last node reads the first one
    packet.old = [1.5 + 0.5 * node for node in range(5000)]
    [data] = evaluate_packet(packet.encode())
    results = Results.decode(data)
    assert calls
    assert len(results.nodes) == len(results.faults) == 5000


@pytest.mark.parametrize("given", [7, True, None, "text", 2.5])
@pytest.mark.parametrize("old", [1.5, 7, "text", NEVER_COMPUTED])
def test_what_python_computes_leaves_no_number_behind_that_compiled_code_reads(given: Json, old: Item) -> None:
    assert loader.load()
    known = FunctionRegistry(
        {**registry().functions, "give": Function(name="give", call=lambda *_: given, takes="values")}, {}
    )
    packet = numbers(1000)
    packet.functions = known.fingerprints({"sum", "give"})
    packet.templates = [packet.templates[0], DefinitionTemplate("give", (("x", 2),), {})]
    packet.template[0] = 1
    packet.refs[-2] = 0  # the last node reads the first one
    packet.old = [old, *(NEVER_COMPUTED for _ in range(999))]
    found = evaluate_packet(packet.encode(), known)
    with thresholds.forced(Thresholds.highest()):  # no compiled code
        assert evaluate_packet(packet.encode(), known) == found


@pytest.mark.parametrize("given", [7, True, "text", 2.5])
def test_what_is_computed_together_leaves_no_number_behind_that_compiled_code_reads(
    given: Json, calls: list[int]
) -> None:
    assert loader.load()
    together = Function(name="give", vector=lambda inputs, _: [given] * len(inputs[0]), takes="values")
    known = FunctionRegistry({**registry().functions, "give": together}, {})
    packet = numbers(1100)
    packet.functions = known.fingerprints({"sum", "give"})
    packet.templates = [packet.templates[0], DefinitionTemplate("give", (("x", 2),), {})]
    packet.template[:100] = [1] * 100
    packet.refs = [~0, ~1] * 100 + [ref for node in range(1000) for ref in (node % 100, ~1)]
    packet.old = [1.5] * 1100
    found = evaluate_packet(packet.encode(), known)
    assert calls
    with thresholds.forced(Thresholds.highest()):  # neither vector forms nor compiled code
        assert evaluate_packet(packet.encode(), known) == found


def test_where_it_stops_at_every_other_node_it_is_asked_less_and_less(calls: list[int]) -> None:
    assert loader.load()
    evaluate_packet(numbers(20_000, odd=10_000).encode())
    assert len(calls) < 50
    assert calls[-1] > 8_000


def test_small_packets_and_machines_without_compiled_code_do_without(
    monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    data = numbers(Thresholds().kernel_call_min_elements // 3 - 1).encode()
    found = evaluate_packet(data)
    monkeypatch.setattr(loader, "_unavailable", False)
    monkeypatch.setattr(loader, "_kernel", None)
    monkeypatch.setattr(thresholds, "now", Thresholds(kernel_load_min_elements=0))
    monkeypatch.setattr(loader.importlib, "import_module", lambda _: (_ for _ in ()).throw(ImportError("none")))  # type: ignore[attr-defined]
    assert evaluate_packet(data) == found
    assert loader._unavailable
    assert not loader.load()
    assert calls == []


def test_compiled_code_is_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is in the folder that `NUMBA_CACHE_DIR` names, separately for each release. If nothing can be written,
    there is no cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert loader._cache_folder() == str(tmp_path / f"kernel-{fingerprint.code()}")
    assert not loader.is_cached()
    assert loader.compile_module(SimpleNamespace(twice=lambda x: 2 * x)).twice(2) == 4
    assert not loader.is_cached()  # planning needs only a part of the code
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert loader._cache_folder() == ""
    assert not loader.is_cached()


def test_threads_that_compile_at_once_keep_it_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread may restore Numba's earlier folder while another one compiles: without a folder, Numba writes to the
    current directory."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    first_is_in, second_is_in, first_is_done = Event(), Event(), Event()
    folders: list[str] = []

    def first(one: Any) -> Any:
        first_is_in.set()
        # The second thread must not get in. If it does, the folder that it sees changes when the first one
        # ends.
        second_is_in.wait(0.2)
        return one

    def second(one: Any) -> Any:
        second_is_in.set()
        first_is_done.wait(60)
        folders.append(numba.config.CACHE_DIR)
        return one

    kinds = iter((first, second))
    monkeypatch.setattr(numba, "njit", lambda **_: next(kinds))
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(loader.compile_module, SimpleNamespace(twice=lambda x: 2 * x))
        one.add_done_callback(lambda _: first_is_done.set())
        first_is_in.wait(60)
        two = threads.submit(loader.compile_module, SimpleNamespace(twice=lambda x: 2 * x))
        assert one.result().twice(2) == two.result().twice(2) == 4
    assert folders == [loader._cache_folder()]


def test_compiled_code_of_other_releases_goes_once_nobody_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    old, new = time.time() - loader._UNUSED_MAX - 100, time.time() - loader._UNUSED_MAX + 100
    for name, age in (("kernel-old", old), ("kernel-left-by-a-crash-123", old), ("kernel-new", new), ("other", old)):
        (tmp_path / name / "dvu").mkdir(parents=True)
        (tmp_path / name / "dvu" / "sweep.nbc").touch()
        os.utime(tmp_path / name, (age, age))
    own = Path(loader._cache_folder())
    os.utime(own, (old, old))
    loader._prune(own)
    assert {path.name for path in tmp_path.iterdir()} == {"kernel-new", "other", own.name}
    loader._cache_folder()
    assert own.stat().st_mtime > new


def test_compiled_code_that_another_process_is_removing_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel-old").mkdir()
    os.utime(tmp_path / "kernel-old", (0, 0))
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(FileNotFoundError))
    loader._prune(tmp_path / "kernel-own")
    assert (tmp_path / "kernel-old").exists()


def test_one_value_of_many_inputs_is_compiled_too() -> None:
    work = graph("fanin", 2000, gated=True)
    assert loader.load()
    linked = linker.link(work, registry(), 1 << 20)
    assert linked is not None
    assert np.bincount(work.template).tolist() == [1, 1999]
    assert linked.covers == [True, True]
