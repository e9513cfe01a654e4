"""Builds `PullState`s for tests, and lets time pass for them."""

from collections.abc import Sequence

from rebaser_client.jetstream.pull.actions import (
    Action,
    SendPull,
)
from rebaser_client.jetstream.pull.state import PullState


def pulls(actions: Sequence[Action]) -> list[tuple[int, int, int]]:
    return [(action.token, action.batch, action.max_bytes) for action in actions if isinstance(action, SendPull)]


def consume(limit: int = 10, threshold: int = 5, **more: object) -> PullState:
    """Return a state that has sent its first pull, for `limit` messages."""
    state = PullState(limit=limit, threshold=threshold, **more)  # type: ignore[arg-type]
    assert pulls(state.start(0.0))
    return state


def wait(state: PullState, seconds: float) -> list[Action]:
    """Let `seconds` pass for the state, with the ticks of a connection, and return its actions."""
    actions: list[Action] = []
    began = state._now
    for half in range(int(seconds * 2)):
        actions += state.tick(began + (half + 1) / 2)
    return actions


# -- a single pull (fetch) ---------------------------------------------------------------------------------------------


def fetch(**more: object) -> PullState:
    return consume(3, 0, single_pull=True, expires=2.0, **more)
