"""Builds phrases that several commands print."""

from typing import TYPE_CHECKING

from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_core.state.tally import Tally


def progress_text(done: int, total: int | None, seconds: float) -> str:
    """Return the progress of an update as text: the percentage of `total` values that are done, and the seconds since
    it began."""
    if not total:
        return f"planning, {seconds:.0f} s"
    return f"{100 * done // total} % of {total:,} values, {seconds:.0f} s"


def recompute_text(function: str | None) -> str:
    """Return a text that describes the values that a recompute concerns: those of `function`, or all if it is None."""
    return "all derived values" if function is None else f"values of {console.safe(function)}"


def tally_text(tally: "Tally") -> str:
    """Return the number of values in each state as text, for instance `3 ok, 1 error`."""
    counts = ", ".join(f"{count:,} {state.value}" for state, count in tally.counts.items() if count)
    return counts or "no values"
