"""What a pull consumer knows about its credits and its outstanding pulls. No I/O, no clock.

Invariant: free + outstanding + delivered = granted. A message is one credit spent; a pull that ends gives back what it
was not answered with, once. Outstanding pulls stay few: another is sent only when it would at least double what is
asked for, and as long as anything is outstanding the server can deliver.
"""


class PullState:
    """`free`: credits that no pull asks for. Below zero: messages came that nobody expected any more."""

    def __init__(self) -> None:
        self.free = 0
        self._pulls: dict[str, int] = {}  # token -> messages it may still bring, oldest first

    @property
    def outstanding(self) -> int:
        """Messages that may still come."""
        return sum(self._pulls.values())

    def grant(self, count: int) -> None:
        """The caller can take `count` messages more."""
        self.free += count

    def wanted(self) -> int:
        """How many messages to pull for now; 0: none."""
        return self.free if self.free > 0 and self.free >= self.outstanding else 0

    def sent(self, token: str, count: int) -> None:
        """A pull for `count` messages goes out; its statuses will name `token`."""
        self.free -= count
        self._pulls[token] = count

    def delivered(self) -> None:
        """A message came. It does not say for which pull; the server serves the oldest first."""
        for token, count in self._pulls.items():
            if count > 1:
                self._pulls[token] = count - 1
            else:
                del self._pulls[token]
            return
        self.free -= 1

    def ended(self, token: str, unanswered: int | None) -> bool:
        """The pull is over. `unanswered`: messages it did not bring, where the server said so.

        Returns whether the pull was known, that is, whether its status means anything.
        """
        count = self._pulls.pop(token, None)
        if count is None:
            return False
        self.free += count
        if unanswered is not None:
            # What it brought beyond our guess was counted for other pulls, which may still bring that much.
            self._shift(count - unanswered)
        return True

    def lost(self) -> None:
        """No pull will be answered any more."""
        self.free += self.outstanding
        self._pulls.clear()

    def _shift(self, count: int) -> None:
        """Move `count` credits from the free ones to the outstanding pulls (negative: the other way)."""
        for token in list(self._pulls):
            if count == 0:
                return
            moved = max(count, -self._pulls[token])
            self._pulls[token] += moved
            if not self._pulls[token]:
                del self._pulls[token]
            self.free -= moved
            count -= moved
