"""Defines a reason why a change set waits, and formats counts and ages for its text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitReason:
    """A reason why a change set waits, or a fact about it that is worth knowing.

    `code` identifies the reason for programs, `text` describes the situation, and `advice` says what will happen next
    or what to do. If `waits` is false, nothing waits for this reason, which is reported only for information.
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
