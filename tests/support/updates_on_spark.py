"""Runs an update of one small change set on Spark."""

import itertools

from rebaser.dvu.spark.engine import Engine
from tests.support.packets import small

_numbers = itertools.count()


async def one(engine: Engine, value: int) -> None:
    """Run one small update, and check its result. Raises the error of the update."""
    made, packets = small(value)
    # A new label each time, because a label that was slow once gets a job of its own.
    [results] = await engine.evaluate(packets, label=f"{value} {next(_numbers)}")
    made.absorb(results)
    assert [computed.value for computed in made.computed()] == [value + 1]
