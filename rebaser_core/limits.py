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
        known, result = _newest[0]
        if known is not self:
            result = _without_matches(self)
            _newest[0] = self, result
        return result


@lru_cache(maxsize=16)
def _without_matches(limits: Limits) -> Limits:
    return replace(limits, max_matches=0) if limits.max_matches else limits


DEFAULT_LIMITS = Limits()
# The newest limits without matches, after the limits from which they were made. Each request of a server needs the same
# ones, and to hash the limits for `lru_cache` would take longer than everything else.
_newest = [(DEFAULT_LIMITS, _without_matches(DEFAULT_LIMITS))]

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
