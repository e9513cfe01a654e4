"""Phrases that several commands share."""

from rebaser.cli import console


def progress_text(done: int, total: int | None, seconds: float) -> str:
    """How far an update is, for people."""
    if not total:
        return f"planning, {seconds:.0f} s"
    return f"{100 * done // total} % of {total:,} values, {seconds:.0f} s"


def recompute_text(function: str | None) -> str:
    """What is to be recomputed, for people: the values of `function`, or all."""
    return "all derived values" if function is None else f"values by {console.safe(function)}"
