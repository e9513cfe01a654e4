"""Delays between retries double up to a maximum, with a random part of up to a half."""

import random

import pytest

from rebaser_client.backoff import Backoff, jittered
from rebaser_core.backoff import exponential_delay


def middle() -> float:
    return 0.5


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(0.05, 0.3, draw=middle)
    assert [backoff.next_delay() for _ in range(5)] == pytest.approx([0.05, 0.1, 0.2, 0.3, 0.3])
    assert backoff.attempt == 5


def test_a_success_begins_with_the_base_again() -> None:
    backoff = Backoff(0.05, 0.3, draw=middle)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()
    assert backoff.attempt == 0
    assert backoff.next_delay() == pytest.approx(0.05)


@pytest.mark.parametrize(("drawn", "delay"), [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)])
def test_jitter_is_half_a_delay_either_way(drawn: float, delay: float) -> None:
    assert jittered(1.0, lambda: drawn) == pytest.approx(delay)
    assert Backoff(1.0, 1.0, draw=lambda: drawn).next_delay() == pytest.approx(delay)


def test_clients_that_failed_together_return_apart() -> None:
    assert len({Backoff(1.0, 2.0).next_delay() for _ in range(100)}) > 90


def test_a_seed_decides_the_delays() -> None:
    """The simulation seeds `random` so that it can repeat a run."""
    state = random.getstate()
    try:
        random.seed("a run")
        first = [Backoff(1.0, 2.0).next_delay() for _ in range(5)]
        random.seed("a run")
        assert [Backoff(1.0, 2.0).next_delay() for _ in range(5)] == first
    finally:
        random.setstate(state)


def test_an_outage_of_any_length_overflows_nothing() -> None:
    assert exponential_delay(0, 0.5, 30.0) == 0.5
    assert exponential_delay(1_000_000, 0.5, 30.0) == 30.0
    assert Backoff(0.5).next_delay() <= 0.75
