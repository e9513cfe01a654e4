"""Replaces patterns among the inputs of definitions with the values that they match, when an update is planned.

Invariant: the cost grows with the affected definitions and the values that their patterns match. If no definition of a
change set has a pattern, none of this code runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rebaser.dvu import faults
from rebaser_core.definitions import BY_ID
from rebaser_core.errors import DvuError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.state.columns import Columns
from rebaser_core.state.templates import DefinitionTemplate

Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]

# The maximum number of inputs of a value; each value that a pattern matches counts as one. No setting changes this
# limit, because all servers must have the same limit.
MAX_INPUTS = DEFAULT_LIMITS.max_inputs
MAX_ALL = 50_000_000  # maximum number of inputs of all values of an update; each takes 30 bytes of memory
_INPUTS_PER_ID = 3  # an input that is sent with its id counts as three inputs without ids


@dataclass(frozen=True, slots=True)
class Expansion:
    """The inputs of some derived rows, with each pattern replaced by the values that it matches.

    `pattern_of[row]` is `-n - 1` for the row of pattern `n`, and not negative for any other row. Pattern `n` matches
    the rows `members[begin[n]:begin[n] + size[n]]`.

    `input_counts` and `template` have one item for each of the derived rows. `input_counts` counts each matched value
    as an input. `template` is an index into the templates of the change set or, if the definition has patterns,
    `-k - 1` for `widened[k]`. A widened template has one input for each matched value. If the definition calls `by_id`,
    its widened template calls `object` instead, and the names of the template's inputs are their ids.

    `faults` maps the index of a derived row to the code and message of its fault. A row has a fault if it has too many
    inputs, or if the ids of its inputs are too large. Its input count is then 0.
    """

    pattern_of: Ints
    begin: Longs
    size: Longs
    members: Ints
    input_counts: Longs
    template: Ints
    widened: list[DefinitionTemplate]
    faults: dict[int, tuple[str, str]]


def input_counts(columns: Columns, rows: Ints, loops: Any) -> tuple[Longs, Ints]:
    """Return two numbers for each of the derived `rows`: the number of its inputs, where each value that a pattern
    matches counts as one; and the number of patterns in its definition. `columns` must have patterns."""
    assert columns.patterns is not None  # noqa: S101 - the caller has checked it
    links = columns.patterns.links()
    counts, patterns = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
    definitions = (columns.template, columns.first_input, columns.templates.arity, columns.refs)
    loops.input_counts(rows, definitions, links.first_link, links.match_count, counts, patterns)
    return counts, patterns


def expand(columns: Columns, rows: Ints, loops: Any) -> Expansion:
    """Replace the patterns among the inputs of the derived `rows` with the values that they match. `columns` must have
    patterns.

    Raise `DvuError` if `rows` have too many inputs together after that replacement.
    """
    patterns = columns.patterns
    assert patterns is not None  # noqa: S101 - the caller has checked it
    counts, pattern_counts = input_counts(columns, rows, loops)
    links = patterns.links()
    pattern_of, size = links.first_link, links.match_count
    too_many = np.flatnonzero((counts > MAX_INPUTS) & (pattern_counts > 0))
    counts[too_many] = 0
    patterned = np.flatnonzero(pattern_counts)
    by_id = _by_id(columns, rows, patterned)
    total = int(counts.sum()) + _INPUTS_PER_ID * int(counts[by_id].sum())
    if total > MAX_ALL:
        raise DvuError(
            f"the update has {total} inputs, counting all values that patterns match, but {MAX_ALL} are allowed: use"
            " patterns that match fewer values",
            code="too_large",
        )
    template, begin = columns.template[rows], np.zeros(len(size), np.int64)
    if not len(patterned):
        return Expansion(pattern_of, begin, size, rows[:0], counts, template, [], {})
    positions, starts, arity = columns.input_places(rows[patterned])
    link = pattern_of[columns.refs[positions]]
    inputs = np.flatnonzero(link < 0)  # the inputs that are patterns
    numbers = -1 - link[inputs]  # the numbers of these patterns
    used = np.unique(numbers)
    matched = [patterns.rows(columns.ids[row]) for row in links.pattern_row[used].tolist()]
    assert [len(match) for match in matched] == size[used].tolist()  # noqa: S101 - compiled code does no bounds checks
    begin[used] = np.cumsum(size[used]) - size[used]
    owner = np.repeat(np.arange(len(patterned)), arity)[inputs]
    template[patterned], widened = _widened_templates(
        columns, template[patterned], pattern_counts[patterned], inputs - starts[owner], size[numbers]
    )
    expansion = Expansion(
        *(pattern_of, begin, size, np.concatenate(matched), counts, template, widened),
        dict.fromkeys(too_many.tolist(), faults.too_many_inputs(MAX_INPUTS)),
    )
    _name_inputs(columns, rows, [at for at in by_id.tolist() if at not in expansion.faults], expansion)
    return expansion


def _by_id(columns: Columns, rows: Ints, patterned: Longs) -> Longs:
    """Return the items of `patterned` whose definitions call the function `by_id`. Each item is an index into
    `rows`."""
    if BY_ID not in columns.templates.functions:
        return patterned[:0]
    template = columns.template[rows[patterned]]
    named = [number for number in np.unique(template).tolist() if columns.templates[number].function == BY_ID]
    return patterned[np.isin(template, named)]


def _name_inputs(columns: Columns, rows: Ints, positions: list[int], expansion: Expansion) -> None:
    """Give each `by_id` definition at `positions` a template in which the names of the inputs are their ids. If the ids
    alone take more bytes than a value may have, give the definition a fault instead."""
    templates: dict[tuple[int, ...], int | None] = {}  # by inputs; None if the ids take too many bytes
    for position in positions:
        inputs = tuple(columns.inputs(int(rows[position])))
        if inputs not in templates:
            ids = [columns.ids[row] for source in inputs for row in _input_rows(source, expansion)]
            if sum(map(len, set(ids))) > DEFAULT_LIMITS.max_value_bytes:
                templates[inputs] = None
            else:
                templates[inputs] = -1 - len(expansion.widened)
                expansion.widened.append(DefinitionTemplate("object", tuple([(id_, -1) for id_ in ids]), {}))
        template = templates[inputs]
        if template is not None:
            expansion.template[position] = template
        else:
            expansion.input_counts[position] = 0
            expansion.faults[position] = faults.ids_too_large(DEFAULT_LIMITS.max_value_bytes)


def _input_rows(row: int, expansion: Expansion) -> list[int]:
    """Return the rows that the input `row` stands for: the rows that a pattern matches if `row` belongs to a pattern,
    otherwise `row` itself."""
    number = -1 - int(expansion.pattern_of[row])
    if number < 0:
        return [row]
    begin = int(expansion.begin[number])
    rows: list[int] = expansion.members[begin : begin + int(expansion.size[number])].tolist()
    return rows


def _widened_templates(
    columns: Columns, template: Ints, pattern_counts: Ints, positions: Longs, sizes: Longs
) -> tuple[Ints, list[DefinitionTemplate]]:
    """Make the widened templates of definitions that have patterns: each pattern becomes one input for each value that
    it matches. Return a code for each definition, and the list of widened templates. The code `-k - 1` denotes element
    `k` of the list.

    For each definition, `template` has the index of its template, and `pattern_counts` the number of its patterns. For
    each pattern, `positions` has its position among the inputs of its definition, and `sizes` the number of values that
    it matches. The patterns of the first definition come first, then those of the second, and so on. Definitions that
    have the same template, positions and sizes share a widened template.
    """
    starts = np.cumsum(pattern_counts) - pattern_counts
    codes, widened = np.empty_like(template), list[DefinitionTemplate]()
    for count in np.unique(pattern_counts).tolist():
        alike = np.flatnonzero(pattern_counts == count)
        nth_patterns = [starts[alike] + nth for nth in range(count)]
        examples, which = _distinct(
            template[alike], (of_pattern[nth] for nth in nth_patterns for of_pattern in (positions, sizes))
        )
        codes[alike] = -1 - len(widened) - which
        for definition in alike[examples].tolist():
            own = slice(starts[definition], starts[definition] + count)
            size_at = dict(zip(positions[own].tolist(), sizes[own].tolist(), strict=True))
            widened.append(_widen(columns.templates[template[definition]], size_at))
    return codes, widened


def _distinct(first: Ints, others: Iterable[Longs]) -> tuple[Longs, Longs]:
    """Find the distinct rows of a table whose columns are `first` and `others`. Return the index of one example of each
    distinct row and, for each row of the table, the number of the distinct row that it equals."""
    code = first.astype(np.int64)
    for column in others:
        if (column != column[0]).any():  # most columns have the same number in all rows, and need no further work
            code = np.unique(code * (column.max() + 1) + column, return_inverse=True)[1]
    _, examples, which = np.unique(code, return_index=True, return_inverse=True)
    return examples, which


def _widen(template: DefinitionTemplate, size_at: dict[int, int]) -> DefinitionTemplate:
    """Return `template` with each pattern replaced by one input for each value that it matches. `size_at` maps the
    position of a pattern among the inputs to the number of these values."""
    start = 0
    inputs = []
    for name, count in template.inputs:
        end = start + abs(count)
        # A single input (count -1) is never a pattern.
        inputs.append((name, count if count < 0 else sum(size_at.get(position, 1) for position in range(start, end))))
        start = end
    return DefinitionTemplate(template.function, tuple(inputs), template.params)
