"""Limits of requests and commits. Every limit is enforced, because a hostile sender can reach it."""

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are bytes, depths are nested containers, other limits are counts."""

    max_id_length: int = 512  # characters of a value id, input name or function name
    max_depth: int = 64  # nested arrays and maps of one value
    max_value_bytes: int = 256 * 1024  # one value, as CBOR or JSON text
    max_updates: int = 100_000  # updates of one request
    max_inputs: int = 1_000_000  # input ids of one derived value
    max_matches: int = 100  # patterns among the inputs of one derived value; 0: none are accepted
    max_request_bytes: int = 16 * 1024 * 1024  # one request with its blob; a hostile one takes 70 times this to decode

    @property
    def without_matches(self) -> "Limits":
        """The limits for messages of versions that had no inputs by pattern."""
        return _without_matches(self)


@lru_cache(maxsize=16)  # asked for with each request
def _without_matches(limits: Limits) -> Limits:
    return replace(limits, max_matches=0) if limits.max_matches else limits


DEFAULT_LIMITS = Limits()

# A commit gathers the updates of many requests, which were checked when they arrived. These limits only keep a damaged
# or foreign commit from taking all memory. They apply regardless of the limits of the servers that wrote the log, so no
# server may be configured with larger limits.
COMMIT_LIMITS = Limits(
    max_id_length=64 * 1024,
    max_depth=256,
    max_value_bytes=64 * 1024 * 1024,
    max_updates=100_000_000,
    max_inputs=100_000_000,
    max_matches=100_000_000,
    max_request_bytes=1024 * 1024 * 1024,
)
