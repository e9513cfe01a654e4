"""A reason why a change set waits, and the texts of counts and ages."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason. `code` names it for programs, `text` describes the situation, and `advice` says what happens next or
    what to do.

    `waits` tells whether the reason keeps requests or updates waiting. If not, it is reported for information only.
    """

    code: str
    text: str
    advice: str
    waits: bool = True


def times(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def age(seconds: float) -> str:
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
