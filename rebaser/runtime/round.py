"""Lets owners that are to decide requests in the same turn of the event loop prepare their commits together."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from rebaser_client.signal import Signal
from rebaser_core import thresholds

MAX_OWNERS = 64  # maximum number of owners that prepare their commits before the event loop does anything else


class Participant(Protocol):
    """An owner that decides its requests once `decide_now` is set."""

    decide_now: Signal


Prepare: TypeAlias = Callable[[Sequence[Any]], None]


class Round:
    """The owners of one server that are to decide requests in this turn of the event loop."""

    def __init__(self) -> None:
        self._owners: list[Participant] = []

    def join(self, owner: Participant, prepare: Prepare) -> None:
        """Let `owner` decide its requests soon. Before that, `prepare` is called with all owners that have joined,
        unless there are too few. All of them must join with the same `prepare`."""
        if not self._owners:
            asyncio.get_running_loop().call_soon(self._run, prepare)
        self._owners.append(owner)

    def _run(self, prepare: Prepare) -> None:
        owners, self._owners = self._owners[:MAX_OWNERS], self._owners[MAX_OWNERS:]
        if self._owners:
            asyncio.get_running_loop().call_soon(self._run, prepare)
        try:
            if len(owners) >= thresholds.now.round_min_owners:
                prepare(owners)
        finally:
            for owner in owners:
                owner.decide_now.set()
