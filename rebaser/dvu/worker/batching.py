"""Computes many values of one definition with one call to a function's vector form.

Invariant: a result does not depend on whether it was computed in a batch, or with which other values. The evaluator
computes a node by itself if one of its inputs is in error, or if only the digest of an input is available. It also does
so for the nodes of a batch call that raised an exception or returned the wrong number of results.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rebaser.dvu.compiled import linker
from rebaser.dvu.functions.base import Function
from rebaser.dvu.functions.vectorized import checked_results, to_column, to_list
from rebaser.dvu.wire.column import DIGEST, FALSE, FLOAT, INT, ITEM_OF_KIND, OTHER, TRUE
from rebaser.dvu.wire.equality import unchanged
from rebaser.dvu.wire.packet import DefinitionTemplate
from rebaser_core import thresholds
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import Json

_SURELY_FITS = DEFAULT_LIMITS.max_value_bytes // 4 - 1  # a text with at most this many characters is never too large


class BatchState(linker.SweepArrays, Protocol):
    """The part of `rebaser.dvu.worker.evaluator.Evaluator` that batching uses."""

    others: dict[int, Any]

    def compute_each(self, nodes: Sequence[int]) -> None:
        """Compute, one by one, those of `nodes` that are dirty or have a changed input."""

    def store(self, slot: int, outcome: Any) -> None:
        """Store the outcome of a function call for `slot`: a result, or an exception."""

    def report_progress(self, nodes: int) -> None:
        """Report that `nodes` more nodes have been visited."""


def compute(state: BatchState, nodes: Any, functions: Sequence[Function | None]) -> None:
    """Compute those of `nodes` that are dirty or have a changed input. Nodes of one definition are computed together if
    there are enough of them. `nodes` must not depend on each other. `functions` has the function of each template."""
    templates = state.packet.template[nodes]
    if templates[0] == templates[-1] and (templates == templates[0]).all():
        _compute_template(state, nodes, int(templates[0]), functions)
        return
    order = np.argsort(templates.astype(np.min_scalar_type(len(functions)), copy=False), kind="stable")
    nodes, templates = nodes[order], templates[order]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(templates)) + 1, [len(nodes)]))
    sizes, smallest = np.diff(cuts), thresholds.now.group_min_values
    for start, size in zip(cuts[:-1][sizes >= smallest].tolist(), sizes[sizes >= smallest].tolist(), strict=True):
        _compute_template(state, nodes[start : start + size], int(templates[start]), functions)
    state.compute_each(nodes[np.repeat(sizes < smallest, sizes)].tolist())


def _compute_template(state: BatchState, nodes: Any, number: int, functions: Sequence[Function | None]) -> None:
    """Compute those of `nodes` that are dirty or have a changed input. All nodes share template number `number`."""
    template, function = state.packet.templates[number], functions[number]
    arity, limits = template.arity, thresholds.now
    if function is None or function.vector is None or not 0 < arity <= limits.group_max_inputs:
        state.compute_each(nodes.tolist())
        return
    for start in range(0, len(nodes), limits.group_max_values):
        part = nodes[start : start + limits.group_max_values]
        refs = state.packet.refs[state.starts[part][:, None] + np.arange(arity)]
        due = state.packet.dirty[part] | state.changed[refs].any(1)
        plain = due & (state.kinds[refs] <= OTHER).all(1)
        special = part[due & ~plain]
        if len(special):
            state.compute_each(special.tolist())
        if not plain.all():
            state.report_progress(len(part) - len(special) - int(plain.sum()))
            part, refs = part[plain], refs[plain]
        if len(part) < limits.group_min_values:
            state.compute_each(part.tolist())
        else:
            _call(state, part, refs, template, function)


def _call(state: BatchState, nodes: Any, refs: Any, template: DefinitionTemplate, function: Function) -> None:
    """Compute `nodes` with one call of the vector form of `function`. `refs` has a row for each node: the slots of its
    inputs, none of which is in error. If the call fails, repeat it in parts, so that one bad node forces only a few
    nodes to be computed one by one."""
    vector: Any = function.vector
    try:
        inputs = [_column(state, refs[:, position]) for position in range(refs.shape[1])]
        results = checked_results(vector(bind_inputs(template, function, inputs, tuple), template.params), len(nodes))
    except Exception:  # noqa: BLE001 - calls for single values show which value is at fault
        part = thresholds.now.group_retry_max_values
        if len(nodes) <= part:
            state.compute_each(nodes.tolist())
            return
        for start in range(0, len(nodes), part):
            _call(state, nodes[start : start + part], refs[start : start + part], template, function)
        return
    _store(state, nodes + state.base, results)
    state.report_progress(len(nodes))


def bind_inputs(
    template: DefinitionTemplate, function: Function, inputs: list[Any], collect: Callable[[list[Any]], Any] = list
) -> Any:
    """Return `inputs` in the form that `function` takes: a list, or a mapping by name.

    The inputs are values or columns, in the order of the definition. `collect` builds the argument for an input that is
    defined as a list of ids.
    """
    if function.takes == "values":
        return inputs
    named: dict[str, Any] = {}
    start = 0
    for name, count in template.inputs:
        named[name] = inputs[start] if count < 0 else collect(inputs[start : start + count])
        start += abs(count)
    return named


def scalar_caller(template: DefinitionTemplate, function: Function) -> Callable[[list[Json]], Any]:
    """Return a function that computes one value with the vector form of `function`."""
    vector: Any = function.vector

    def call(values: list[Json]) -> Any:
        inputs = bind_inputs(template, function, [to_column([value]) for value in values], tuple)
        (result,) = to_list(checked_results(vector(inputs, template.params), 1))
        if isinstance(result, Exception):
            raise result
        return result

    return call


def _column(state: BatchState, slots: Any) -> Any:
    """Return the values in `slots` as a column for the vector form of a function. No slot may be in error."""
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
    values: list[Any] = [ITEM_OF_KIND.get(kind) for kind in kinds.tolist()]
    for kind, numbers in ((FLOAT, state.floats), (INT, state.ints)):
        positions = np.flatnonzero(kinds == kind)
        for position, number in zip(positions.tolist(), numbers[slots[positions]].tolist(), strict=True):
            values[position] = number
    for position in np.flatnonzero(kinds == OTHER).tolist():
        values[position] = state.others[int(slots[position])]
    return values


def _store(state: BatchState, slots: Any, results: Any) -> None:
    """Store `results`, which are checked already, and mark the slots whose values changed."""
    if isinstance(results, list):
        types = set(map(type, results))
        if types == {str} and _storable_texts(results):
            _store_texts(state, slots, results)
            return
        if types not in ({float}, {bool}):  # integers are stored one by one, because they may not fit into 64 bits
            _store_each(state, slots, results)
            return
        results = np.array(results)
    if results.dtype == np.float64:
        finite = np.isfinite(results)
        if not finite.all():
            _store_each(state, slots[~finite], results[~finite].tolist())
            slots, results = slots[finite], results[finite]
        old_bits = state.floats.view(np.int64)[slots]
        same = old_bits == results.view(np.int64)
        state.floats[slots], state.kinds[slots] = results, FLOAT
    else:
        integers = results.dtype == np.int64
        kinds = np.full(len(slots), INT, np.uint8) if integers else np.where(results, TRUE, FALSE).astype(np.uint8)
        same = state.kinds[slots] == kinds
        if integers:
            same &= state.ints[slots] == results
            state.ints[slots] = results
        state.floats[slots], state.kinds[slots] = np.nan, kinds
    state.changed[slots[~same]] = 1


def _store_each(state: BatchState, slots: Any, results: list[Any]) -> None:
    for slot, result in zip(slots.tolist(), results, strict=True):
        state.store(slot, result)


def _storable_texts(texts: list[str]) -> bool:
    """Return True if a quick check shows that all of `texts` can be stored."""
    if max(map(len, texts)) > _SURELY_FITS:
        return False
    try:
        return all(map(str.isascii, texts)) or bool("".join(texts).encode())
    except UnicodeEncodeError:
        return False


def _store_texts(state: BatchState, slots: Any, texts: list[str]) -> None:
    old_kinds, others = state.kinds[slots], state.others
    state.changed[slots[(old_kinds != OTHER) & (old_kinds != DIGEST)]] = 1
    for position in np.flatnonzero((old_kinds == OTHER) | (old_kinds == DIGEST)).tolist():
        slot = int(slots[position])
        if not unchanged(others[slot], texts[position]):
            state.changed[slot] = 1
    state.kinds[slots], state.floats[slots] = OTHER, np.nan
    others.update(zip(slots.tolist(), texts, strict=True))
