"""Where the work of an update is done: little of it at once, all other in threads."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rebaser.dvu import run
from rebaser.dvu.evaluate import evaluate_packet
from rebaser.dvu.run import LITTLE, LITTLE_RESULT, LITTLE_TEXT, update
from rebaser_core.updates import Derive, Set, Update
from tests.spark.graphs import Book, expected

pytestmark = pytest.mark.anyio


class Here:
    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        return [evaluate_packet(packet) for packet in packets]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done in threads."""
    done: list[str] = []

    async def run_sync(run_: Callable[..., Any], function: Callable[..., Any], *args: Any, **_: object) -> Any:
        done.append(function.__name__)
        return run_(function, *args)

    monkeypatch.setattr(run.to_thread, "run_sync", run_sync)
    return done


async def updated(updates: list[Update]) -> None:
    book = Book(updates)
    with book.state.view() as view:
        book.commit(await update(view, Here(), label="test"), view.sequence)
    assert book.values() == expected(book.state.updates())


def joined(count: int, text: str = "x", times: int = 1) -> list[Update]:
    return [Set("a", text), *(Derive(f"b{at}", "concat", {"x": ("a",) * times}) for at in range(count))]


async def test_little_work_takes_no_thread(threads: list[str]) -> None:
    await updated(joined(1))  # loads what planning needs
    threads.clear()
    await updated(joined(10))
    assert threads == []


@pytest.mark.parametrize(
    "updates",
    [joined(LITTLE), joined(1, times=LITTLE), joined(1, "x" * (LITTLE_TEXT + 1)), [Set("l", []), *joined(1)]],
    ids=["values", "edges", "text", "structured"],
)
async def test_all_other_does(threads: list[str], updates: list[Update]) -> None:
    await updated(updates)
    assert {"plan", "next_wave", "absorb", "computed"} <= set(threads)


async def test_large_results_are_read_in_a_thread(threads: list[str]) -> None:
    await updated(joined(1))
    threads.clear()
    await updated(joined(LITTLE_RESULT // (100 * LITTLE_TEXT) + 2, "x" * LITTLE_TEXT, times=100))
    assert threads == ["absorb", "next_wave", "computed"]
