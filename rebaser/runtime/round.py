"""Lets owners that are to decide requests in the same turn of the event loop prepare their commits together."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Protocol, TypeAlias

from rebaser_client.signal import Signal
from rebaser_core import thresholds

# The maximum number of owners that prepare their commits before the event loop does anything else. With 64, the data of
# the owners did not stay in the second cache of the processor from one stage to the next.
MAX_OWNERS = 24


class RoundMember(Protocol):
    """An owner that decides its requests once `decide_now` is set."""

    decide_now: Signal

    def check_queue(self) -> None:
        """Join the round if requests are queued, and end if the queue has failed."""

    def fail(self, error: Exception) -> None:
        """End with `error`, which `check_queue` raised."""


Prepare: TypeAlias = Callable[[Sequence[Any]], None]


class Round:
    """The owners of one server whose requests arrived in this turn of the event loop.

    In the next turn, all of them check their queues, those that are to decide requests prepare their commits together,
    and then each of these goes on by itself. The members know how to prepare commits, because this package does not.
    """

    def __init__(self) -> None:
        self._arrived: list[RoundMember] = []
        self._joined: list[RoundMember] = []
        self._is_due = False
        self._variables = copy_context()  # of the server, not of the task that happens to begin the round

    def arrived(self, owner: RoundMember) -> None:
        """Let `owner` check its queue soon, because requests have arrived."""
        self._arrived.append(owner)
        self._be_due()

    def join(self, owner: RoundMember, prepare: Prepare) -> None:
        """Let `owner` decide its requests soon. Before that, `prepare`, which is the same for all members, is called
        with all owners that have joined, if there are at least `round_min_owners` of them."""
        self._prepare = prepare
        self._joined.append(owner)
        self._be_due()

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run, context=self._variables)

    def _run(self) -> None:
        arrived, self._arrived = self._arrived, []
        for owner in arrived:
            try:
                owner.check_queue()  # it may join
            except Exception as error:  # noqa: BLE001 - the other owners are not at fault
                owner.fail(error)
        owners, self._joined = self._joined[:MAX_OWNERS], self._joined[MAX_OWNERS:]
        self._is_due = False
        if self._joined:
            self._be_due()
        try:
            if len(owners) >= thresholds.now.round_min_owners:
                self._prepare(owners)
        finally:
            for owner in owners:
                owner.decide_now.set()
