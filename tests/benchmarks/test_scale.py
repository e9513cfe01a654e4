"""The benchmark of a large change set measures what it claims, and its values are right."""

from typing import Any

import pytest

from tests.benchmarks.here import Here
from tests.benchmarks.scale import Graph, Memory, Scale

pytestmark = pytest.mark.bench


@pytest.mark.anyio
async def test_it_is_loaded_edited_updated_and_right() -> None:
    said: list[dict[str, Any]] = []
    with Memory() as memory:
        scale = Scale(Graph(2000, 6000), Here(), memory, said.append)
        scale.load()
        await scale.update("first")
        await scale.edit("1")
        await scale.edit("all")
        scale.check()
    assert [one["step"] for one in said] == ["load", "first", "edit 1", "update 1", "edit all", "update all", "check"]
    assert said[0]["values"] == 2000
    assert said[1]["affected"] == said[5]["affected"] == 1800
    assert 0 < said[3]["affected"] < 1800
    assert said[0]["owner_gb"] > 0
    columns = scale.state.cells.columns
    assert (
        sum(columns.templates[shape].arity for shape in columns.template[: columns.count].tolist() if shape >= 0)
        == 6000
    )


@pytest.mark.anyio
async def test_a_wrong_value_is_found() -> None:
    with Memory() as memory:
        scale = Scale(Graph(100, 300), Here(), memory, lambda _: None)
        scale.load()
        await scale.update("first")
        columns = scale.state.cells.columns
        columns.put(columns.index["v50"], 2.0)
        with pytest.raises(AssertionError):
            scale.check()
