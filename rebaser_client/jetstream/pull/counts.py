"""Counts how much the pulls on the server may still deliver: the pending counts of ADR-37. This module does no I/O, and
reads no clock.

An amount is a number of messages or a number of bytes. All amounts of a reader have the same unit, because ADR-37
allows a limit in messages or a limit in bytes, but not both.

The reader grants amounts: the limit at the beginning, and more whenever it has room. `outstanding` is the amount that
pulls have requested and the server has not delivered. `free` is the granted amount that no pull has requested yet.
Invariant: each granted amount is either `free`, `outstanding` or delivered.

A message does not say which pull requested it, so it is counted for the oldest pull. The status that ends a pull says
how much the pull did not deliver, and the counts are corrected accordingly.
"""

from collections import deque


class SentPull:
    """A pull on the server. `remaining` is the amount that it may still deliver.

    `sent_at` is the time when it was sent, in seconds by the clock of `PullState`.
    """

    __slots__ = ("pin", "remaining", "sent_at", "token")

    def __init__(self, token: int, remaining: int, pin: str, sent_at: float) -> None:
        self.token = token
        self.remaining = remaining
        self.pin = pin
        self.sent_at = sent_at


class PullCounts:
    """The counts of one reader's pulls. The subclass `PullState` makes the decisions.

    `free` is negative while the server has delivered more than was requested.
    """

    def __init__(self, limit: int) -> None:
        self.free = limit
        self.outstanding = 0
        self._sent: deque[SentPull] = deque()  # oldest first; only pulls that may still deliver something
        self._tokens = 0  # the newest token
        self._floor = 1  # answers to pulls with a lower token are ignored

    def is_current(self, token: int) -> bool:
        """Return whether `token` belongs to a pull that has not been given up."""
        return self._floor <= token <= self._tokens

    def _add_pull(self, pin: str, now: float) -> int:
        """Record a pull that requests the whole free amount. Return its token."""
        self._tokens += 1
        self._sent.append(SentPull(self._tokens, self.free, pin, now))
        self.outstanding += self.free
        self.free = 0
        return self._tokens

    def _count_delivery(self, amount: int) -> None:
        """Subtract a delivered `amount` from the remaining amounts of the oldest pulls.

        If the pulls have less than `amount` left, subtract the rest from `free`.
        """
        sent = self._sent
        while sent and amount:
            oldest = sent[0]
            if oldest.remaining > amount:
                oldest.remaining -= amount
                self.outstanding -= amount
                amount = 0
            else:
                amount -= oldest.remaining
                self.outstanding -= oldest.remaining
                sent.popleft()
        self.free -= amount

    def _finish_pull(self, token: int, undelivered: int | None) -> int:
        """Count the pull `token` as ended. The amount that it did not deliver becomes free. Return that amount.

        `undelivered` is that amount according to the status of the server. If it is None, our own count is used.
        """
        expected = 0
        for pull in self._sent:
            if pull.token == token:
                expected = pull.remaining
                self._sent.remove(pull)
                break
        self.outstanding -= expected
        self.free += expected
        if undelivered is None:
            return expected
        # `expected - undelivered` is what this pull delivered beyond our count. We counted that amount as delivered by
        # other pulls, so they may still deliver it. For instance, of two pulls of 10, the first has delivered 4 by our
        # count, so `expected` is 6. If the status says that 2 are undelivered, the first pull has delivered 8. Then our
        # count for the second pull is 4 too high, and 4 move from `free` to the second pull.
        self._move_to_others(expected - undelivered)
        return undelivered

    def _move_to_others(self, amount: int) -> None:
        """Move `amount` from `free` to the remaining pulls.

        If `amount` is negative, move its absolute value from these pulls to `free`, or all that they have if that is
        less.
        """
        for pull in list(self._sent):
            if not amount:
                return
            moved = max(amount, -pull.remaining)
            pull.remaining += moved
            self.outstanding += moved
            self.free -= moved
            amount -= moved
            if not pull.remaining:
                self._sent.remove(pull)

    def _give_up_all(self) -> None:
        """Give up all pulls: answers to them are ignored from now on."""
        self.free += self.outstanding
        self.outstanding = 0
        self._sent.clear()
        self._floor = self._tokens + 1

    def _give_up_older(self, time: float) -> int:
        """Give up the pulls that were sent before `time`. Return the token of the newest of them, or 0."""
        newest = 0
        while self._sent and self._sent[0].sent_at < time:
            newest = self._sent[0].token
            self._finish_pull(newest, None)
        if newest:
            self._floor = newest + 1
        return newest
