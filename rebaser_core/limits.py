"""Defines the limits of requests and commits. All limits are enforced, because a hostile sender may try to exceed any
of them."""

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum sizes and counts in requests or commits."""

    max_id_length: int = 512  # maximum characters in a value's id, an input's name or a function's name
    max_depth: int = 64  # nested arrays and maps in a value
    max_value_bytes: int = 256 * 1024  # bytes of a value, encoded as CBOR or JSON
    max_updates: int = 100_000  # updates in a request
    max_inputs: int = 1_000_000  # input ids of a derived value
    max_matches: int = 100  # patterns among the inputs of a derived value; 0 forbids patterns
    # Bytes of a request and its blob; decoding needs up to 70 times the memory.
    max_request_bytes: int = 16 * 1024 * 1024

    @property
    def without_matches(self) -> "Limits":
        """The same limits, but for messages of older versions, in which inputs cannot be patterns."""
        return _without_matches(self)


@lru_cache(maxsize=16)  # the function is called for each request
def _without_matches(limits: Limits) -> Limits:
    return replace(limits, max_matches=0) if limits.max_matches else limits


DEFAULT_LIMITS = Limits()

# A commit contains the updates of many requests, which were checked when they were received. These limits only keep a
# damaged or foreign commit from using up the memory. Every reader of a log enforces them, so no limit for requests may
# ever be larger; otherwise, readers would refuse commits that a server wrote.
COMMIT_LIMITS = Limits(
    max_id_length=64 * 1024,
    max_depth=256,
    max_value_bytes=64 * 1024 * 1024,
    max_updates=100_000_000,
    max_inputs=100_000_000,
    max_matches=100_000_000,
    max_request_bytes=1024 * 1024 * 1024,
)
