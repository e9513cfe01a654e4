"""Spreadsheet engines: values that are set are in column A, computed ones in column B.

So all values that are set form one rectangle, in which both engines are fastest with many edits. A sheet has 1,048,576
rows.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import formualizer
import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.dvu.peers.graph import Graph, Peer
from tests.benchmarks.evaluate import ADD_ONE, GATE, MAX_3, MEAN_2, MEAN_3, PRODUCT_3, SUM, TWICE

ROWS = 1_048_576
FORMULAS = {
    ADD_ONE: "={}+1",
    TWICE: "={}*2+1",
    MEAN_3: "=({}+{}+{})/3",
    PRODUCT_3: "=({}*{}+{})/3",
    MAX_3: "=MAX({},{},{})",
    MEAN_2: "=({}+{})/2",
    GATE: "=MAX({},1)",
}


def formulas(graph: Graph) -> Iterator[str]:
    """Yield the formulas of column B."""
    if max(graph.base, len(graph.kinds)) > ROWS:
        raise SystemExit(f"a sheet has {ROWS} rows")
    base = graph.base
    cells = [f"A{at + 1}" for at in range(base)] + [f"B{at + 1}" for at in range(len(graph.kinds))]
    for kind, inputs in zip(graph.kinds.tolist(), graph.inputs(), strict=True):
        names = [cells[one] for one in inputs]
        if kind != SUM:
            yield FORMULAS[kind].format(*names)
        else:
            yield "=" + "+".join(names) if len(names) < 4 else f"=SUM({names[0]}:{names[-1]})"


def runs(at: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive numbers, each as its start in `at` and its length."""
    begin = np.concatenate(([0], np.flatnonzero(np.diff(at) != 1) + 1, [len(at)]))
    yield from zip(begin[:-1].tolist(), np.diff(begin).tolist(), strict=True)


class Formualizer(Peer):
    """Formualizer through its Python API. Values are set in rectangles, or one by one if they are not adjacent; then
    everything dirty is computed."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._formulas = [[one] for one in formulas(graph)]
        self._held = [[one] for one in graph.held.tolist()]

    def build(self) -> None:
        self._book = formualizer.Workbook()
        self._sheet = self._book.sheet("S")
        self._sheet.set_values_batch(1, 1, len(self._held), 1, self._held)
        self._sheet.set_formulas_batch(1, 2, len(self._formulas), 1, self._formulas)
        self._book.evaluate_all()

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        for begin, count in runs(at):
            row = int(at[begin]) + 1
            if count > 1:
                self._sheet.set_values_batch(row, 1, count, 1, values[begin : begin + count, None].tolist())
            else:
                self._book.set_value("S", row, 1, float(values[begin]))
        self._book.evaluate_all()

    def values(self) -> Any:
        graph, found = self.graph, []
        for column, count in ((1, graph.base), (2, len(graph.kinds))):
            rows = self._sheet.get_values(formualizer.RangeAddress("S", 1, column, count, column))
            found += [row[0] for row in rows]
        return found


class HyperFormula(Peer):
    """HyperFormula in a Node.js process, which measures the time itself and gets its commands through a pipe."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._folder = tempfile.TemporaryDirectory()
        self._place = Path(self._folder.name)
        (self._place / "formulas").write_text("\n".join(formulas(graph)))
        graph.held.tofile(self._place / "held")
        script = Path(__file__).with_name("hyperformula.cjs")
        self._node = subprocess.Popen(
            ["node", "--max-old-space-size=7500", str(script), self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, **question: Any) -> Any:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps(question) + "\n")
        self._node.stdin.flush()
        answer = self._node.stdout.readline()
        if not answer:
            raise SystemExit(f"HyperFormula ended with {self._node.wait()}")
        return json.loads(answer)

    def build(self) -> None:
        self.version = self._ask(do="build")["version"]

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        values.tofile(self._place / "edit")
        pieces = [[int(at[begin]), count] for begin, count in runs(at)]
        return float(self._ask(do="apply", pieces=pieces)["ms"])

    def values(self) -> Any:
        self._ask(do="values")
        return np.fromfile(self._place / "values")

    def close(self) -> None:
        with self._node:  # closes its input, and waits for its end
            pass
        self._folder.cleanup()
