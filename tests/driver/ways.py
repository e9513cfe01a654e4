"""The thresholds of a seed: small graphs take every way there is from edits to results."""

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

PARTS = 20  # packets of an update, or parts of a checkpoint, about: each is a message of its own


def drawn(rng: random.Random, size: int) -> Thresholds:
    """Those of a seed whose largest change set has `size` values."""
    those = rng.choice([Thresholds, Thresholds.lowest, Thresholds.highest, *[lambda: Thresholds.drawn(rng)] * 5])()  # type: ignore[no-untyped-call]
    return in_few_parts(those, size, PARTS)


def told(those: Thresholds) -> str:
    """What is not as it is by default."""
    plain = Thresholds()
    names = [one.name for one in fields(those) if getattr(those, one.name) != getattr(plain, one.name)]
    return ", ".join(f"{name}={getattr(those, name)}" for name in names) or "default thresholds"


@contextmanager
def taken(those: Thresholds, counts: Counter[str]) -> Iterator[None]:
    """What is done in this process is done so meanwhile; `counts` tells how it was planned."""
    plan = update.plan  # type: ignore[attr-defined]

    def planned(*given: Any, **named: Any) -> Any:
        made = plan(*given, **named)
        counts[f"way {type(made).__name__}"] += 1
        return made

    with forced(those), patch.object(update, "plan", planned):
        yield
