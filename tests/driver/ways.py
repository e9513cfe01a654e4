"""Draws the thresholds of a seed, so that even small graphs use every method of the product."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from unittest.mock import patch

from rebaser.dvu import update
from rebaser_core.thresholds import Thresholds, forced
from tests.support.thresholds import in_few_parts

PARTS = 20  # approximate number of packets of an update, or parts of a checkpoint; each is a message


def drawn(rng: random.Random, size: int) -> Thresholds:
    """Draw thresholds for a seed whose largest change set has `size` values."""
    those = rng.choice([Thresholds, Thresholds.lowest, Thresholds.highest, *[lambda: Thresholds.drawn(rng)] * 5])()  # type: ignore[no-untyped-call]
    return in_few_parts(those, size, PARTS)


def told(those: Thresholds) -> str:
    """Return the thresholds that differ from their defaults, as a text."""
    plain = Thresholds()
    names = [one.name for one in fields(those) if getattr(those, one.name) != getattr(plain, one.name)]
    return ", ".join(f"{name}={getattr(those, name)}" for name in names) or "default thresholds"


@contextmanager
def taken(those: Thresholds, counts: Counter[str]) -> Iterator[None]:
    """Use the thresholds in this process inside the `with` block, and count the kinds of plans in `counts`."""
    plan = update.plan  # type: ignore[attr-defined]

    def planned(*given: Any, **named: Any) -> Any:
        made = plan(*given, **named)
        counts[f"way {type(made).__name__}"] += 1
        return made

    with forced(those), patch.object(update, "plan", planned):
        yield
