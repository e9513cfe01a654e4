"""The property of `tests/property/test_dvu_incremental.py`, on a real Spark and with many change sets at the same
time."""

import random

import anyio
import pytest

from rebaser.dvu.spark.engine import Engine
from rebaser.dvu.update import update
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from tests.support.graphs import Book, expected, typed

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

IDS = "abcdefgh"


def random_update(dice: random.Random) -> Update:
    id_ = dice.choice(IDS)
    kind = dice.random()
    if kind < 0.3:
        return Set(id_, dice.choice([0, 1, 1.0, 2.5, None, True, "x", [1], {"x": 1}, "a text longer than its digest"]))
    if kind < 0.36:
        return Unset(id_)
    if kind < 0.42:
        return Remove(id_)
    inputs = dice.sample(IDS + "z", dice.randrange(1, 4))
    function = dice.choice(["sum", "list", "count", "concat", "union", "coalesce", "cel", "max", "nope"])
    if function == "cel":
        return Derive(id_, "cel", {f"n{at}": one for at, one in enumerate(inputs)}, {"expr": "n0 == null ? 0 : n0"})
    return Derive(id_, function, {"first": inputs[0], "more": inputs[1:]})


async def live(engine: Engine, seed: int) -> None:
    """Run one change set: random edits, some of them during an update. Its values are checked whenever it is up to
    date."""
    dice = random.Random(seed)
    book = Book(Set(id_, at) for at, id_ in enumerate(IDS[:4]))
    for _ in range(8):
        book.edit(*(random_update(dice) for _ in range(dice.randrange(1, 4))))
        with book.state.view() as view:
            async with anyio.create_task_group() as tasks:
                if dice.random() < 0.5:
                    tasks.start_soon(edit_meanwhile, book, random_update(dice))
                computed = await update(view, engine, label=f"seed {seed}")
            book.commit(computed, view.sequence)
        while book.state.owes:
            with book.state.view() as view:
                book.commit(await update(view, engine, label=f"seed {seed}"), view.sequence)
        assert typed(book.values()) == typed(expected(book.state.updates())), f"seed {seed}"


async def edit_meanwhile(book: Book, update: Update) -> None:
    book.edit(update)


async def test_change_sets_that_are_edited_at_once_are_right_whenever_they_rest(engine: Engine) -> None:
    async with anyio.create_task_group() as tasks:
        for seed in range(12):
            tasks.start_soon(live, engine, seed)
