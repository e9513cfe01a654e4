"""Every shape of the benchmark gives the expected results. Times are only printed."""

import pytest

from tests.benchmarks.matches import FOLDER, Loaded, measure

pytestmark = pytest.mark.bench


@pytest.mark.parametrize(
    ("shape", "size", "id_", "sums"),
    [
        ("sum", 5, "total", (0 + 1 + 2, 3 + 4 + 5, 1 + 3 + 4 + 5)),
        ("islands", 3 * (FOLDER + 1), "isle/2", (36, 3 + 36, 3 + 36)),
    ],
)
def test_a_shape_adds_up(shape: str, size: int, id_: str, sums: tuple[int, ...]) -> None:
    loaded = Loaded(shape, size)
    found = []
    for edit, turn in (("", 0), ("all", 3), ("new", 1)):
        if edit:
            loaded.edit(edit, turn)
        loaded.update()
        found.append(loaded.state.cells[id_].value)
    assert tuple(found) == sums


def test_a_pattern_beside_it_leaves_a_graph_what_it_is() -> None:
    with_it, alone = Loaded("beside", 500), Loaded("alone", 500)
    for edit in (None, "all", "one", "new"):
        for loaded in (with_it, alone):
            if edit is not None:
                loaded.edit(edit, 2)
            loaded.update()
        found = {id_: cell.value for id_, cell in with_it.state.cells.items()}
        assert found.pop("total") == (3 if edit == "new" else 1)
        assert found == {id_: cell.value for id_, cell in alone.state.cells.items()}


@pytest.mark.long
@pytest.mark.parametrize("shape", ["sum", "islands", "beside", "alone"])
def test_the_figures_of_a_million(shape: str) -> None:
    for line in measure(shape, 1_000_000, 5):
        print(line)
