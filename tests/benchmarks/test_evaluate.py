"""Every shape of the benchmark gives the same results as plain Python. Times are only printed."""

import pytest

from rebaser.dvu.compiled import linker, loader
from rebaser.dvu.worker.evaluate import evaluate_packet
from tests.benchmarks.evaluate import SHAPES, bare, graph, measure

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_the_same_compiled_or_not(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader.load()
    data = graph(shape, 2000).encode()
    with_it = evaluate_packet(data)
    monkeypatch.setattr(linker, "link", lambda *_: None)
    assert evaluate_packet(data) == with_it


@pytest.mark.long
def test_the_figures_of_a_million() -> None:
    assert loader.load()
    loop = bare()
    for shape in SHAPES:
        print(measure(shape, 1_000_000, runs=5, scalar=True, loop=loop))
