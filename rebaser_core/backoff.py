"""Exponential backoff as a pure function.

The jitter needs randomness, so `rebaser_client.backoff` adds it.
"""

_MAX_DOUBLINGS = 64  # 2.0**1024 would overflow; every cap is reached long before


def exponential_delay(attempt: int, base: float, cap: float) -> float:
    """Return the seconds to wait after `attempt` (0 is the first): `base`, doubled each time, at most `cap`."""
    return min(base * 2.0 ** min(attempt, _MAX_DOUBLINGS), cap)
