"""Dask, with a task for each value, and PySpark in its obvious form, with a join for each level. Both compute
everything."""

from typing import Any

import dask.threaded
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.benchmarks.dvu.peers.graph import Graph, Peer
from tests.benchmarks.dvu.peers.in_process import FUNCTIONS

THREADS = 2


class Dask(Peer):
    """A dictionary of tasks, computed in threads; every value is requested."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._names = names = [f"v{at}" for at in range(len(graph))]
        self._tasks: dict[str, Any] = dict(zip(names, graph.held.tolist(), strict=False))
        for node, (kind, inputs) in enumerate(zip(graph.kinds.tolist(), graph.inputs(), strict=True)):
            self._tasks[names[graph.base + node]] = (FUNCTIONS[kind], *[names[one] for one in inputs])

    def build(self) -> None:
        self._found = dask.threaded.get(self._tasks, self._names, num_workers=THREADS)

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self._tasks.update(zip([self._names[one] for one in at.tolist()], values.tolist(), strict=True))
        self.build()

    def values(self) -> Any:
        return list(self._found)


class Joins(Peer):
    """Values and edges as tables, with a join, an aggregate and a checkpoint for each level. It uses classic PySpark in
    this process."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._held = graph.held.copy()
        arity = np.diff(graph.starts)
        nodes = np.repeat(np.arange(len(graph.kinds)), arity)
        levels = np.zeros(len(graph), np.int32)
        for node, inputs in enumerate(graph.inputs()):
            levels[graph.base + node] = 1 + max([levels[one] for one in inputs])
        self._depth = int(levels.max())
        self._table = pa.table(
            {
                "node": nodes + graph.base,
                "place": np.arange(len(nodes)) - graph.starts[nodes],
                "input": graph.refs,
                "kind": graph.kinds[nodes],
                "level": levels[nodes + graph.base],
            }
        )

    def build(self) -> None:
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": str(THREADS),
            "spark.sql.adaptive.enabled": "false",
        }
        builder = SparkSession.builder.master(f"local[{THREADS}]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._edges = self._spark.createDataFrame(self._table).cache()
        self._run()

    def _run(self) -> None:
        a, b, c = (F.max(F.when(F.col("place") == place, F.col("value"))) for place in range(3))
        sums = (F.sum("value").alias("s"), F.max("value").alias("m"), a.alias("a"), b.alias("b"), c.alias("c"))
        formula = F.expr(
            "case kind when 0 then a + 1 when 1 then a * 2 + 1 when 2 then s when 3 then s / 3"
            " when 4 then (a * b + c) / 3 when 5 then m when 6 then s / 2 else greatest(a, 1.0) end"
        )
        held = pa.table({"id": np.arange(len(self._held)), "value": self._held})
        known = self._spark.createDataFrame(held)
        for level in range(1, self._depth + 1):
            edges = self._edges.where(F.col("level") == level)
            joined = edges.join(known, F.col("input") == F.col("id")).groupBy("node", "kind").agg(*sums)
            new = joined.select(F.col("node").alias("id"), formula.alias("value"))
            known = known.union(new).localCheckpoint()
        self._found = known.toArrow()

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self._held[at] = values
        self._run()

    def values(self) -> Any:
        values = np.empty(len(self.graph))
        values[self._found["id"].to_numpy()] = self._found["value"].to_numpy()
        return values

    def close(self) -> None:
        self._spark.stop()
