"""The simulated reader: the state that it reads at any position must be the one from then, or be purged."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

import anyio

from rebaser_client import PositionPurged, RebaserClient
from rebaser_core.errors import RebaserError
from tests.simulation.history import History, Violation, that
from tests.simulation.left import nothing_left


@dataclass
class Reader:
    """Reads at random positions while others edit and history is purged.

    `outdated` returns when a deposed leader last answered a read: such a leader may not have the position yet.
    """

    name: str
    rng: random.Random
    histories: Callable[[], Collection[History]]
    tell: Callable[[str, str], None]
    outdated: Callable[[], float]
    rounds: int = 12

    async def run(self, url: str) -> None:
        async with RebaserClient.connect(url) as client:
            while self.rounds:
                self.rounds -= 1
                await anyio.sleep(self.rng.random() * 2)
                written = [history for history in self.histories() if history.last]
                if not written:
                    continue
                history = self.rng.choice(written)
                before = self.outdated()
                try:
                    await read_at(client, history, position(self.rng, history))
                except Violation:
                    if self.outdated() == before:
                        raise
                except RebaserError as error:
                    self.tell(self.name, f"reading {history.key}: {type(error).__name__} {error.code}")
            await nothing_left(client)


def position(rng: random.Random, history: History) -> int:
    """Draw a position in the log since the change set began or was created."""
    return rng.randint(history.birth or min(history.times), history.last)


async def read_at(client: RebaserClient, history: History, at: int) -> None:
    """Read the state at position `at`, and check it.

    Raises `Violation` if the state is wrong, or if it is reported as purged although everything that it needs is
    stored.
    """
    key, purged = history.key, history.purged
    newest = max(sequence for sequence in history.times if sequence <= at)
    try:
        state = await client.state(key.workspace, key.change_set, at=at)
    except PositionPurged as error:
        that(
            history.reads_from[newest] < history.purged,
            f"{key}@{at} is reported as purged, although everything that it needs is stored",
        )
        oldest = error.oldest
        readable = oldest is None or (oldest in history.times and history.reads_from[oldest] >= purged)
        that(readable, f"{key}: the oldest position is reported as {oldest}, which was purged before")
        return
    if newest < history.birth:
        # The change set was created meanwhile: the state before is that of its parent, or of a deleted change
        # set.
        return
    that(state.last == newest, f"{key}@{at} was read as of commit {state.last} instead of {newest}")
    wrong = history.book.differs(state.last, state.cells, tracked=None)
    that(not wrong, f"the state read at {key}@{at} differs: {wrong}")
