"""What pulls were sent, and what of it may still come: the pending counts of ADR-37. No I/O, no clock.

Counting is in one unit, messages or bytes, because ADR-37 lets only one of the two be the limit.
Invariant: free + outstanding + all that came = all that was granted, the limit included. `outstanding` is the ADR's
pending count without what waits in the reader's buffer. A message does not say which pull it answers (the server takes
turns), so it is counted for the oldest; the status that ends a pull says how much it left, and sets that right.
"""

from collections import deque


class SentPull:
    """A pull on the server. `left`: what it may still bring."""

    __slots__ = ("at", "left", "pin", "token")

    def __init__(self, token: int, left: int, pin: str, at: float) -> None:
        self.token = token
        self.left = left
        self.pin = pin
        self.at = at


class PullCounts:
    """The foundation of `PullState`. `free`: what no pull asks for. Below zero: more came than was asked for."""

    def __init__(self, limit: int) -> None:
        self.free = limit
        self.outstanding = 0
        self._sent: deque[SentPull] = deque()  # oldest first, those that may still bring something
        self._tokens = 0
        self._floor = 1  # answers to pulls before this one mean nothing any more

    def expects(self, token: int) -> bool:
        """Whether `token` is that of a pull that was not given up."""
        return self._floor <= token <= self._tokens

    def _ask(self, pin: str, at: float) -> int:
        """All that is free is asked for; the token of the pull."""
        self._tokens += 1
        self._sent.append(SentPull(self._tokens, self.free, pin, at))
        self.outstanding += self.free
        self.free = 0
        return self._tokens

    def _came(self, amount: int) -> None:
        sent = self._sent
        while sent and amount:
            oldest = sent[0]
            if oldest.left > amount:
                oldest.left -= amount
                self.outstanding -= amount
                amount = 0
            else:
                amount -= oldest.left
                self.outstanding -= oldest.left
                sent.popleft()
        self.free -= amount

    def _over(self, token: int, left: int | None) -> int:
        """The pull is over. What it left is free again, and returned (None: what we thought was left)."""
        thought = 0
        for sent in self._sent:
            if sent.token == token:
                thought = sent.left
                self._sent.remove(sent)
                break
        self.outstanding -= thought
        self.free += thought
        if left is None:
            return thought
        # What it brought beyond our guess was counted for other pulls, which may still bring that much.
        self._shift(thought - left)
        return left

    def _shift(self, amount: int) -> None:
        """Move `amount` from the free to the other pulls (negative: the other way). What they cannot take stays."""
        for sent in list(self._sent):
            if not amount:
                return
            moved = max(amount, -sent.left)
            sent.left += moved
            self.outstanding += moved
            self.free -= moved
            amount -= moved
            if not sent.left:
                self._sent.remove(sent)

    def _lose_all(self) -> None:
        self.free += self.outstanding
        self.outstanding = 0
        self._sent.clear()
        self._floor = self._tokens + 1

    def _lose_older(self, at: float) -> int:
        """Give up what was sent before `at`; the token of the last of these, or 0."""
        last = 0
        while self._sent and self._sent[0].at < at:
            last = self._sent[0].token
            self._over(last, None)
        if last:
            self._floor = last + 1
        return last
