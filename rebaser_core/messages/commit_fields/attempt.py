"""Defines the wire format in which a commit records an attempt at a request, an update of derived values or a pull."""

from typing import Any

from rebaser_core.commit import PULL_ATTEMPT, Attempt
from rebaser_core.encoding.envelope import Body, Count
from rebaser_core.encoding.payload import malformed


class AttemptV1(Body):
    sequence: Count
    count: Count
    first_ms: Count
    deaths: Count = 0


class PullAttemptV3(Body):
    first_ms: Count
    deaths: Count = 0


def read_attempt(attempt: AttemptV1 | None, pull: PullAttemptV3 | None) -> Attempt | None:
    if pull is not None:
        if attempt is not None:
            raise malformed("a commit must not have both the field 'attempt' and the field 'pull'")
        return Attempt(PULL_ATTEMPT, 0, pull.first_ms, pull.deaths)
    return None if attempt is None else Attempt(attempt.sequence, attempt.count, attempt.first_ms, attempt.deaths)


def write_attempt(attempt: Attempt) -> dict[str, Any]:
    deaths = {"deaths": attempt.deaths} if attempt.deaths else {}
    if attempt.sequence == PULL_ATTEMPT:
        return {"pull": {"firstMs": attempt.first_ms, **deaths}}
    return {"attempt": {"sequence": attempt.sequence, "count": attempt.count, "firstMs": attempt.first_ms, **deaths}}
