"""What patterns among inputs stand for when an update is planned.

Invariant: costs what is affected, and what its patterns match; where no definition has one, nobody comes here.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rebaser.dvu import faults
from rebaser_core.definitions import BY_ID
from rebaser_core.errors import DvuError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.state.columns import Columns
from rebaser_core.state.templates import Template

Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]

MAX_INPUTS = (
    DEFAULT_LIMITS.max_inputs
)  # of a value, patterns included; whatever the settings, as all servers must agree
MAX_ALL = 50_000_000  # of all values that an update has to do with: 30 bytes each
_OF_NAME = 3  # inputs that take as much as the id of one


@dataclass(frozen=True, slots=True)
class Expanded:
    """What the patterns among the inputs of some rows stand for, as `loops.local` takes it.

    `width[i]` is how many inputs row i has then, `shape[i]` its shape, or `-k - 1` for `wide[k]`, where a pattern
    became as many inputs as it matches, and those of `by_id` an `object` that names its inputs by their ids. `crowded`
    are those that have too many, as if they had none, with code and words of their fault.
    """

    of: Ints
    begin: Longs
    size: Longs
    members: Ints
    width: Longs
    shape: Ints
    wide: list[Template]
    crowded: dict[int, tuple[str, str]]


def widths(columns: Columns, rows: Ints, run: Any) -> tuple[Longs, Ints]:
    """How many inputs each of `rows` has, all derived, with what patterns match, and how many patterns."""
    patterns = columns.patterns
    assert patterns is not None  # noqa: S101 - nobody asks where there are none
    links = patterns.links()
    width, several = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
    run.widths(
        rows,
        columns.template,
        columns.first_input,
        columns.templates.arity,
        columns.refs,
        links.first_link,
        links.match_count,
        width,
        several,
    )
    return width, several


def expand(columns: Columns, rows: Ints, run: Any) -> Expanded:
    """What stands behind the inputs of `rows`, all derived, in `columns` that have patterns. Raises `DvuError` if they
    are too many."""
    patterns = columns.patterns
    assert patterns is not None  # noqa: S101 - see above
    width, several = widths(columns, rows, run)
    links = patterns.links()
    of, size = links.first_link, links.match_count
    crowded = np.flatnonzero((width > MAX_INPUTS) & (several > 0))
    width[crowded] = 0
    having = np.flatnonzero(several)
    named = _named(columns, rows, having)
    total = int(width.sum()) + _OF_NAME * int(width[named].sum())
    if total > MAX_ALL:
        raise DvuError(f"patterns make {total} inputs of one update; at most {MAX_ALL}", code="too_large")
    shape, begin = columns.template[rows], np.zeros(len(size), np.int64)
    if not len(having):
        return Expanded(of, begin, size, rows[:0], width, shape, [], {})
    places, starts, arity = columns.input_places(rows[having])
    among = of[columns.refs[places]]
    patterned = np.flatnonzero(among < 0)
    numbers = -1 - among[patterned]
    used = np.unique(numbers)
    found = [patterns.rows(columns.ids[row]) for row in links.pattern_row[used].tolist()]
    assert [len(one) for one in found] == size[used].tolist()  # noqa: S101 - compiled code looks at no bounds
    begin[used] = np.cumsum(size[used]) - size[used]
    owner = np.repeat(np.arange(len(having)), arity)[patterned]
    shape[having], wide = _shapes(columns, shape[having], several[having], patterned - starts[owner], size[numbers])
    made = Expanded(
        *(of, begin, size, np.concatenate(found), width, shape, wide),
        dict.fromkeys(crowded.tolist(), faults.too_many_inputs(MAX_INPUTS)),
    )
    _name(columns, rows, [at for at in named.tolist() if at not in made.crowded], made)
    return made


def _named(columns: Columns, rows: Ints, having: Longs) -> Longs:
    """Those of `having`, positions of rows with patterns, that are by `by_id`."""
    if BY_ID not in columns.templates.functions:
        return having[:0]
    shape = columns.template[rows[having]]
    ours = [one for one in np.unique(shape).tolist() if columns.templates[one].function == BY_ID]
    return having[np.isin(shape, ours)]


def _name(columns: Columns, rows: Ints, named: list[int], made: Expanded) -> None:
    """Give those at `named` shapes with the ids of their inputs; or a fault, as these alone are more than a value may
    hold."""
    known: dict[tuple[int, ...], int] = {}
    for at in named:
        inputs = tuple(columns.inputs(int(rows[at])))
        shape = known.get(inputs)
        if shape is None:
            ids = [columns.ids[row] for one in inputs for row in _behind(one, made)]
            known[inputs] = shape = -1 - len(made.wide)
            if sum(map(len, set(ids))) > DEFAULT_LIMITS.max_value_bytes:
                shape = known[inputs] = 0
            else:
                made.wide.append(Template("object", tuple([(id_, -1) for id_ in ids]), {}))
        if shape:
            made.shape[at] = shape
        else:
            made.width[at] = 0
            made.crowded[at] = faults.ids_too_large(DEFAULT_LIMITS.max_value_bytes)


def _behind(row: int, made: Expanded) -> list[int]:
    """The row of an input, or those that the pattern in it matches."""
    number = -1 - int(made.of[row])
    if number < 0:
        return [row]
    begin = int(made.begin[number])
    rows: list[int] = made.members[begin : begin + int(made.size[number])].tolist()
    return rows


def _shapes(columns: Columns, shape: Ints, several: Ints, places: Any, sizes: Any) -> tuple[Ints, list[Template]]:
    """Shapes of rows that have patterns, `several[i]` of them row i: as inputs `places`, which become `sizes` inputs,
    one row after another."""
    starts = np.cumsum(several) - several
    made, wide = np.empty_like(shape), list[Template]()
    for count in np.unique(several).tolist():
        some = np.flatnonzero(several == count)
        code = shape[some].astype(np.int64)
        for at in range(count):
            for said in (places[starts[some] + at], sizes[starts[some] + at]):
                if (said != said[0]).any():
                    code = np.unique(code * (said.max() + 1) + said, return_inverse=True)[1]
        _, example, which = np.unique(code, return_index=True, return_inverse=True)
        made[some] = -1 - len(wide) - which
        for one in some[example].tolist():
            own = slice(starts[one], starts[one] + count)
            widened = dict(zip(places[own].tolist(), sizes[own].tolist(), strict=True))
            wide.append(_widened(columns.templates[shape[one]], widened))
    return made, wide


def _widened(shape: Template, sizes: dict[int, int]) -> Template:
    at = 0
    inputs = []
    for name, count in shape.inputs:
        end = at + abs(count)
        inputs.append((name, count if count < 0 else sum(sizes.get(place, 1) for place in range(at, end))))
        at = end
    return Template(shape.function, tuple(inputs), shape.params)
