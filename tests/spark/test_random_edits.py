"""Random edits beside updates, on a real server and Spark, give exactly the values that follow from the definitions.

`python -m tests.driver` runs any number of seeds. Each run of the tests takes a new one, and prints it.
"""

from typing import Any

import pytest

from rebaser.dvu.spark.engine import Engine
from tests.driver.removals import Removals
from tests.driver.story import Story, run_seed
from tests.support.draws import drawing

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

FRESH = drawing("random edits").randrange(10_000, 10_000_000)
LONG = 200


async def check(seed: int, story: type[Story], nats_url: str, engine: Engine) -> None:
    name = story.__name__.lower()
    again = f"python -m tests.driver --story {name} --seed {seed}"
    print(again)
    report = await run_seed(seed, nats_url, engine, story)
    if report.violation is not None:
        pytest.fail(f"{report.told}\n{report.violation}\nagain: {again}", pytrace=False)


def known(*seeds: int) -> list[Any]:
    """Seeds that found something once: the short form runs the first, and draws one that nobody ran before."""
    return [seed if seed == seeds[0] else pytest.param(seed, marks=pytest.mark.long) for seed in seeds]


@pytest.mark.parametrize("seed", known(4, 15, 20))
async def test_edits_beside_updates(nats_url: str, engine: Engine, seed: int) -> None:
    await check(seed, Story, nats_url, engine)


@pytest.mark.parametrize("seed", known(1, 2, 3, 4))
async def test_removals_while_many_results_are_computed(nats_url: str, engine: Engine, seed: int) -> None:
    await check(seed, Removals, nats_url, engine)


async def test_a_seed_that_nobody_ran_before(nats_url: str, engine: Engine) -> None:
    """The seed also decides which of the two kinds it is."""
    await check(FRESH, (Story, Removals)[FRESH % 2], nats_url, engine)


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_many_seeds(nats_url: str, engine: Engine) -> None:
    for seed in range(FRESH, FRESH + LONG):
        await check(seed, Story, nats_url, engine)
        await check(seed, Removals, nats_url, engine)
