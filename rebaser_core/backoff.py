"""Computes the delays of exponential backoff, without jitter.

Jitter needs randomness, which this package does not use. `rebaser_client.backoff` adds it.
"""

_MAX_DOUBLINGS = 64  # enough to reach any cap; 2.0**1024 would overflow a float


def exponential_delay(attempt: int, base: float, cap: float) -> float:
    """Return how many seconds to wait after attempt number `attempt`, counted from 0.

    The delay is `base` after the first attempt, doubles with each further attempt, and never exceeds `cap`.
    """
    return min(base * 2.0 ** min(attempt, _MAX_DOUBLINGS), cap)
