"""Draws graphs that are larger than usual, with fan-outs, chains, texts, patterns and cycles, and edits of them.

Values `v/…` (numbers) and `t/…` (texts) are set. Values `x/…` (numbers), `y/…` (texts) and `p/…` (with patterns as
inputs) are derived.
"""

import random
from collections.abc import Iterator

from rebaser_core.updates import Derive, Input, Match, Remove, Set, Unset, Update

SET, TEXTS, PATTERNS = 6, 4, 4
GLOBS = ("x/*", "x/1*", "*/2", "v/*", "**/3", "y/*")


def grown(rng: random.Random, size: int) -> tuple[Update, ...]:
    """Draw a graph of about `size` derived values."""
    updates: list[Update] = [Set(f"v/{at}", rng.randint(1, 9)) for at in range(SET)]
    updates += [Set(f"t/{at}", _text(rng)) for at in range(TEXTS)]
    updates += [_derived(rng, at) for at in range(size)]
    updates += [_texts(rng, at) for at in range(size // 4)]
    updates += [_pattern(rng, at) for at in range(PATTERNS)]
    return tuple(updates)


def edited(rng: random.Random, size: int) -> tuple[Update, ...]:
    """Draw an edit of a graph of about `size` derived values. The graph may not exist yet."""
    kind = rng.randrange(10)
    if kind < 4:
        return (Set(f"v/{rng.randrange(SET)}", rng.randint(1, 9)), *(_some(rng, size) if rng.random() < 0.3 else ()))
    if kind == 4:
        return (Set(f"t/{rng.randrange(TEXTS)}", _text(rng)),)
    if kind == 5:
        return tuple(Remove(f"x/{at}") for at in _places(rng, size))
    if kind == 6:
        return tuple(_some(rng, size))
    if kind == 7:
        return (rng.choice((Unset, Remove))(f"{rng.choice('vt')}/{rng.randrange(TEXTS)}"),)
    if kind == 8:
        one, other = rng.randrange(size), rng.randrange(size)
        return (_sum(f"x/{one}", (f"x/{other}", "v/0")), _sum(f"x/{other}", (f"x/{one}", "v/1")))
    return (_pattern(rng, rng.randrange(PATTERNS)), Set(f"x/{rng.randrange(size)}", rng.randint(1, 9)))


def _places(rng: random.Random, size: int) -> range:
    first = rng.randrange(size)
    return range(first, min(first + rng.choice((1, 3, 30)), size))


def _some(rng: random.Random, size: int) -> Iterator[Update]:
    for at in _places(rng, size):
        yield _derived(rng, at)


def _derived(rng: random.Random, at: int) -> Update:
    kind = rng.random()
    if kind < 0.6 or not at:
        return _sum(f"x/{at}", (f"v/{rng.randrange(SET)}", f"v/{at % SET}"))
    if kind < 0.9:  # the chain has at most `size` values
        return _sum(f"x/{at}", (f"x/{rng.randrange(max(at - 10, 0), at)}", f"v/{at % SET}"))
    return Derive(f"x/{at}", "product", {"values": (f"x/{rng.randrange(at)}", f"v/{rng.randrange(SET)}")})


def _sum(id_: str, inputs: tuple[str, ...]) -> Derive:
    return Derive(id_, "sum", {"values": inputs})


def _texts(rng: random.Random, at: int) -> Update:
    return Derive(f"y/{at}", "concat", {"values": (f"t/{rng.randrange(TEXTS)}", f"t/{at % TEXTS}")})


def _pattern(rng: random.Random, at: int) -> Update:
    values: Input | tuple[Input, ...] = Match(rng.choice(GLOBS))
    if rng.random() < 0.5:
        values = (values, f"v/{rng.randrange(SET)}")  # type: ignore[assignment]
    return Derive(f"p/{at}", rng.choice(("sum", "count", "count")), {"values": values})


def _text(rng: random.Random) -> str:
    return rng.choice("äbc") * rng.choice((1, 5, 40, 300))
