"""Many values of one definition, computed by one call.

Invariant: nobody can tell from a result that it was computed here, or with which others. Whatever is not plain (an
input in error or known by its digest only, an exception, an odd number of results) is done one by one by the sweep.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rebaser.dvu.compiled import linker
from rebaser.dvu.functions.base import Function
from rebaser.dvu.functions.vectorized import checked_results, to_column, to_list
from rebaser.dvu.wire.column import CONSTANT_ITEMS, DIGEST, FALSE, FLOAT, INT, OTHER, TRUE
from rebaser.dvu.wire.equality import unchanged
from rebaser.dvu.wire.packet import Template
from rebaser_core import thresholds
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import Json

_LONG = DEFAULT_LIMITS.max_value_bytes // 4 - 1  # characters of a text that surely fits


class BatchState(linker.SweepArrays, Protocol):
    """What groups work on: `rebaser.dvu.worker.evaluator.Evaluator`."""

    others: dict[int, Any]

    def some(self, nodes: Sequence[int]) -> None:
        """Compute what is dirty or woken of `nodes`, one by one."""

    def take(self, slot: int, value: Any) -> None:
        """Settle a slot with a value or an exception that a function gave."""

    def told(self, nodes: int) -> None:
        """So many more were looked at."""


def compute(state: BatchState, nodes: Any, functions: Sequence[Function | None]) -> None:
    """Settle `nodes`, which need nothing from each other; `functions` by shape."""
    shapes = state.work.template[nodes]
    if shapes[0] == shapes[-1] and (shapes == shapes[0]).all():
        _alike(state, nodes, int(shapes[0]), functions)
        return
    order = np.argsort(shapes.astype(np.min_scalar_type(len(functions)), copy=False), kind="stable")
    nodes, shapes = nodes[order], shapes[order]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(shapes)) + 1, [len(nodes)]))
    sizes, few = np.diff(cuts), thresholds.now.group
    for start, size in zip(cuts[:-1][sizes >= few].tolist(), sizes[sizes >= few].tolist(), strict=True):
        _alike(state, nodes[start : start + size], int(shapes[start]), functions)
    state.some(nodes[np.repeat(sizes < few, sizes)].tolist())


def _alike(state: BatchState, nodes: Any, number: int, functions: Sequence[Function | None]) -> None:
    """Settle nodes of one shape."""
    shape, function = state.work.templates[number], functions[number]
    arity, limits = shape.arity, thresholds.now
    if function is None or function.vector is None or not 0 < arity <= limits.group_inputs:
        state.some(nodes.tolist())
        return
    for start in range(0, len(nodes), limits.group_most):
        part = nodes[start : start + limits.group_most]
        refs = state.work.refs[state.starts[part][:, None] + np.arange(arity)]
        woken = state.work.dirty[part] | state.changed[refs].any(1)
        plain = woken & (state.kinds[refs] <= OTHER).all(1)
        odd = part[woken & ~plain]
        if len(odd):
            state.some(odd.tolist())
        if not plain.all():
            state.told(len(part) - len(odd) - int(plain.sum()))
            part, refs = part[plain], refs[plain]
        if len(part) < limits.group:
            state.some(part.tolist())
        else:
            _call(state, part, refs, shape, function)


def _call(state: BatchState, nodes: Any, refs: Any, shape: Template, function: Function) -> None:
    """Settle plain nodes. A call that fails is repeated in parts, so that few pay for the trouble of one."""
    vector: Any = function.vector
    try:
        given = bind_inputs(shape, function, [_column(state, refs[:, at]) for at in range(refs.shape[1])], tuple)
        found = checked_results(vector(given, shape.params), len(nodes))
    except Exception:  # noqa: BLE001 - whoever is to blame is found one by one
        again = thresholds.now.group_again
        if len(nodes) <= again:
            state.some(nodes.tolist())
            return
        for start in range(0, len(nodes), again):
            _call(state, nodes[start : start + again], refs[start : start + again], shape, function)
        return
    _settle(state, nodes + state.base, found)
    state.told(len(nodes))


def bind_inputs(shape: Template, function: Function, inputs: list[Any], many: Callable[[list[Any]], Any] = list) -> Any:
    """Inputs, values or columns, as a function takes them; `many` makes what a list of ids becomes."""
    if function.takes == "values":
        return inputs
    named: dict[str, Any] = {}
    at = 0
    for name, count in shape.inputs:
        named[name] = inputs[at] if count < 0 else many(inputs[at : at + count])
        at += abs(count)
    return named


def scalar_caller(shape: Template, function: Function) -> Callable[[list[Json]], Any]:
    """What computes one value with a vector form."""
    vector: Any = function.vector

    def call(values: list[Json]) -> Any:
        given = bind_inputs(shape, function, [to_column([value]) for value in values], tuple)
        (result,) = to_list(checked_results(vector(given, shape.params), 1))
        if isinstance(result, Exception):
            raise result
        return result

    return call


def _column(state: BatchState, slots: Any) -> Any:
    """The column of what stands in `slots`, all of which are values."""
    kinds = state.kinds[slots]
    first = int(kinds[0])
    if (kinds == first).all():
        if first == FLOAT:
            return state.floats[slots]
        if first == INT:
            return state.ints[slots]
        if first == OTHER:
            return list(map(state.others.__getitem__, slots.tolist()))
    if ((kinds == TRUE) | (kinds == FALSE)).all():
        return kinds == TRUE
    values: list[Any] = [CONSTANT_ITEMS.get(kind) for kind in kinds.tolist()]
    for kind, where in ((FLOAT, state.floats), (INT, state.ints)):
        places = np.flatnonzero(kinds == kind)
        for place, number in zip(places.tolist(), where[slots[places]].tolist(), strict=True):
            values[place] = number
    for place in np.flatnonzero(kinds == OTHER).tolist():
        values[place] = state.others[int(slots[place])]
    return values


def _settle(state: BatchState, slots: Any, found: Any) -> None:
    """Put down results."""
    if isinstance(found, list):
        kinds = set(map(type, found))
        if kinds == {str} and _fit(found):
            _texts(state, slots, found)
            return
        if kinds not in ({float}, {bool}):  # integers may not fit
            _one_by_one(state, slots, found)
            return
        found = np.array(found)
    if found.dtype == np.float64:
        good = np.isfinite(found)
        if not good.all():
            _one_by_one(state, slots[~good], found[~good].tolist())
            slots, found = slots[good], found[good]
        before = state.floats.view(np.int64)[slots]
        same = before == found.view(np.int64)
        state.floats[slots], state.kinds[slots] = found, FLOAT
    else:
        whole = found.dtype == np.int64
        now = np.full(len(slots), INT, np.uint8) if whole else np.where(found, TRUE, FALSE).astype(np.uint8)
        same = state.kinds[slots] == now
        if whole:
            same &= state.ints[slots] == found
            state.ints[slots] = found
        state.floats[slots], state.kinds[slots] = np.nan, now
    state.changed[slots[~same]] = 1


def _one_by_one(state: BatchState, slots: Any, found: list[Any]) -> None:
    for slot, value in zip(slots.tolist(), found, strict=True):
        state.take(slot, value)


def _fit(texts: list[str]) -> bool:
    """Whether all can be stored, as far as that can be told in a moment."""
    if max(map(len, texts)) > _LONG:
        return False
    try:
        return all(map(str.isascii, texts)) or bool("".join(texts).encode())
    except UnicodeEncodeError:
        return False


def _texts(state: BatchState, slots: Any, texts: list[str]) -> None:
    before, others = state.kinds[slots], state.others
    state.changed[slots[(before != OTHER) & (before != DIGEST)]] = 1
    for place in np.flatnonzero((before == OTHER) | (before == DIGEST)).tolist():
        slot = int(slots[place])
        if not unchanged(others[slot], texts[place]):
            state.changed[slot] = 1
    state.kinds[slots], state.floats[slots] = OTHER, np.nan
    others.update(zip(slots.tolist(), texts, strict=True))
