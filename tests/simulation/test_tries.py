"""Checks which attempts at requests count as ended by a fault."""

from rebaser_core.commit import DVU_ATTEMPT, Attempt, Commit, Kind
from tests.simulation.tries import Strikes, Tries


class Log:
    """Builds commits at given times, and faults."""

    def __init__(self) -> None:
        self.time = 0.0
        self.strikes = Strikes(lambda: self.time)
        self.tries = Tries(self.strikes)

    def commit(self, kind: Kind, owner: str = "one", attempt: Attempt | None = None) -> None:
        self.time += 1
        self.tries.note(Commit(f"c{self.time}", 0, kind, 0, owner, None, None, attempt=attempt))

    def announce(self, owner: str, deaths: int, sequence: int = 6) -> None:
        self.commit(Kind.ATTEMPT, owner, Attempt(sequence, 0, 0, deaths))

    def strike(self, server: str) -> None:
        self.time += 1
        self.strikes.note(server)


def test_a_try_goes_on_beside_updates_and_checkpoints_of_its_owner() -> None:
    log = Log()
    log.announce("one", 1)
    log.announce("one", 1, DVU_ATTEMPT)
    log.commit(Kind.DVU)
    log.commit(Kind.CHECKPOINT)
    log.strike("one")
    log.announce("two", 2)
    assert log.tries.ended[6] == 1


def test_a_try_ends_with_what_it_decided_and_a_strike_after_that_is_none_of_it() -> None:
    log = Log()
    log.announce("one", 1)
    log.commit(Kind.REBASE)
    log.strike("one")
    log.commit(Kind.DVU, "two")
    assert log.tries.ended[6] == 0


def test_a_try_that_was_taken_back_is_none() -> None:
    log = Log()
    log.announce("one", 1)
    log.strike("one")
    log.announce("one", 0)
    log.commit(Kind.DVU, "two")
    assert log.tries.ended[6] == 0


def test_the_first_word_of_the_next_owner_ends_all_tries_of_the_last() -> None:
    log = Log()
    log.announce("one", 1)
    log.strike("one")
    log.commit(Kind.DVU, "two")
    log.strike("one")
    log.announce("two", 2)
    log.strike("two")
    log.announce("one", 3)
    assert log.tries.ended[6] == 2


def test_a_try_may_also_end_because_the_next_owner_stood_still() -> None:
    """While the next owner stood still, NATS delivered its task to another server as well."""
    log = Log()
    log.strike("three")
    log.announce("one", 1)
    log.strike("two")
    log.announce("two", 2)
    log.announce("three", 3)
    assert log.tries.ended[6] == 1 + 1
    log.commit(Kind.DVU, "four")
    assert log.tries.ended[6] == 1 + 1
