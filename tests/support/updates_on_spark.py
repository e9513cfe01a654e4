"""An update of one small change set on Spark."""

import itertools

from rebaser.dvu.spark.engine import Engine
from tests.support.packets import small

_numbers = itertools.count()


async def one(engine: Engine, value: int) -> None:
    """One small update; right or raising."""
    made, packets = small(value)
    [results] = await engine.evaluate(packets, label=f"{value} {next(_numbers)}")  # nobody's who was slow once
    made.absorb(results)
    assert [computed.value for computed in made.computed()] == [value + 1]
