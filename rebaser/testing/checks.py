"""Checks the functions of plug-ins: runs them with the code of Spark's workers, and compares single calls with batches.

Invariant: the results that are compared come from the code of the workers. Like a server, this module sends inputs and
receives results in encoded packets.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rebaser.dvu import fingerprint
from rebaser.dvu.functions.base import Function, ScalarForm
from rebaser.dvu.functions.plugin_calls import contained
from rebaser.dvu.functions.registry import FunctionRegistry, builtins
from rebaser.dvu.functions.vectorized import checked_results
from rebaser.dvu.wire.packet import IN_ERROR, NEVER_COMPUTED, DefinitionTemplate, PacketBuilder, Results
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core import thresholds
from rebaser_core.values import Fault, Json, JsonInput, State, Value, canonical, check_json

Case: TypeAlias = Mapping[str, Any]
"""The inputs of a call by name. Each is a JSON value; a tuple of values stands for an input that is a list of ids."""

_NAME = "checked"  # the name of a function that is not a `Function`


@dataclass(frozen=True)
class _Call:
    """The arguments of a call. `inputs` are the values of the inputs; `template` has their names."""

    template: DefinitionTemplate
    inputs: tuple[Json, ...]

    def text(self) -> str:
        named: dict[str, Any] = {}
        start = 0
        for name, count in self.template.inputs:
            named[name] = self.inputs[start] if count < 0 else self.inputs[start : start + count]
            start += abs(count)
        return f"{named!r:.500}"


def check_function(
    function: Function | ScalarForm, cases: Iterable[Case], params: Mapping[str, JsonInput] | None = None
) -> list[Value]:
    """Compute `function` for each of `cases` like a server, and return the values, in the order of `cases`.

    `function` is what a plug-in exports: a `Function`, or a callable `(inputs, params)`. All calls get the same
    `params`. If the function raises an exception, or returns something that cannot be stored, the value is in the state
    `error`, and has an error code and a message.

    Raise `AssertionError` if the results for a case differ in value or in type (`1`, `1.0` and `true` differ):

    - between two calls with the same arguments,
    - between a call for one value and a call for many, in which the case occurs alone, or together with the others, in
      any order. If `vector` fails for values that can be computed one by one, that is an error, too.

    Whether the function can be pickled does not matter, and is not checked: Spark's workers import plug-ins by their
    entry points, and receive inputs and results as packets.

    Raise `UnprocessableError` if an input or a param is not JSON, and `ValueError` if a built-in function has the
    same name.
    """
    made = function if isinstance(function, Function) else Function(name=_NAME, call=function)
    if made.name in builtins():
        raise ValueError(f"there is already a function {made.name!r}: use another name")
    given = {name: check_json(value) for name, value in (params or {}).items()}
    calls = [_call(made, case, given) for case in cases]
    failures: list[Exception] = []
    known = FunctionRegistry({made.name: _recording(contained(made), failures)}, {})

    first = [_compute(known, [call])[0] for call in calls]
    _compare(calls, first, [_compute(known, [call])[0] for call in calls], "is called again")
    failures.clear()
    for batch, told in _batches(calls, first):
        failing = any(first[at].state is State.ERROR for at in batch)
        found = _compute(known, [calls[at] for at in batch])
        if failures and not failing:
            raise AssertionError(
                f"the vector form of {made.name!r} failed for values that can be computed one by one, such as "
                f"{calls[batch[0]].text()}: {type(failures[0]).__name__}: {failures[0]}"
            ) from failures[0]
        failures.clear()
        _compare([calls[at] for at in batch], [first[at] for at in batch], found, told)
    return first


def _call(function: Function, case: Case, params: Mapping[str, Json]) -> _Call:
    inputs: list[Json] = []
    names: list[tuple[str, int]] = []
    for name, given in case.items():
        many = given if isinstance(given, tuple) else (given,)
        inputs += [check_json(value) for value in many]
        names.append((name, len(given) if isinstance(given, tuple) else -1))
    return _Call(DefinitionTemplate(function.name, tuple(names), dict(params)), tuple(inputs))


def _recording(function: Function, failures: list[Exception]) -> Function:
    """Return a copy of `function` whose vector form records its failures. A worker would not report these failures, but
    would compute the values one by one instead."""
    vector: Any = function.vector
    if vector is None:
        return function

    def recorded(inputs: Any, params: Any) -> Any:
        try:
            results = vector(inputs, params)
            checked_results(results, _length(inputs))
        except Exception as error:
            failures.append(error)
            raise
        return results

    return replace(function, vector=recorded)


def _length(inputs: Any) -> int:
    """Return the length of the columns in `inputs`, the argument of a vector form."""
    columns = inputs.values() if isinstance(inputs, Mapping) else inputs
    flat = [one for column in columns for one in (column if isinstance(column, tuple) else (column,))]
    return len(flat[0])


def _batches(calls: Sequence[_Call], first: Sequence[Value]) -> Iterator[tuple[list[int], str]]:
    """Yield lists of positions in `calls` that a worker computes together, each with a phrase for error messages that
    says how the calls are computed. `first` are the results of the calls."""
    size = thresholds.now.group_min_values
    groups: defaultdict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for at, call in enumerate(calls):
        groups[call.template.inputs].append(at)
        yield [at] * size, "is computed many times in one call"
    for group in groups.values():
        # The vector form may fail for a group with errors, so the rest of the group is also computed without these
        # errors.
        computable = [at for at in group if first[at].state is not State.ERROR]
        for part in [group] if len(computable) in (0, len(group)) else [group, computable]:
            many = part * -(-size // len(part))
            yield many, "is computed together with the other cases"
            yield many[::-1], "is computed together with the other cases, in the reverse order"


def _compute(known: FunctionRegistry, calls: Sequence[_Call]) -> list[Value]:
    """Return the results of `calls`, computed by the code of a worker in one packet."""
    packet = PacketBuilder(1, fingerprint.code(), known.fingerprints(known.functions))
    shapes: dict[tuple[tuple[str, int], ...], int] = {}
    for call in calls:
        shape = call.template.inputs
        if shape not in shapes:
            shapes[shape] = len(packet.templates)
            packet.templates.append(call.template)
        packet.template.append(shapes[shape])
        packet.refs += [~(len(packet.constants) + at) for at in range(len(call.inputs))]
        packet.constants += call.inputs
        packet.dirty.append(True)
        packet.old.append(NEVER_COMPUTED)
    values: list[Value] = []
    for part in map(Results.decode, evaluate_packet(packet.encode(), known)):
        faults: Iterator[Any] = iter(part.faults)
        values.extend([_value(item, faults) for item in part.values.tolist()])
    return values


def _value(item: Any, faults: Iterator[Any]) -> Value:
    if item is not IN_ERROR:
        return Value(item, State.OK)
    code, message = next(faults)  # no input is an error, so the fault has no origin
    return Value(None, State.ERROR, Fault(code, message, ""))


def _compare(calls: Sequence[_Call], first: Sequence[Value], other: Sequence[Value], told: str) -> None:
    for call, one, two in zip(calls, first, other, strict=True):
        if one.state is not two.state or one.error != two.error or canonical(one.value) != canonical(two.value):
            raise AssertionError(
                f"the result of {call.template.function!r} is not the same when it {told}: first {_text(one)}, "
                f"then {_text(two)}, for the inputs {call.text()}"
            )


def _text(value: Value) -> str:
    return f"{value.value!r:.200}" if value.error is None else f"the error {value.error.code}: {value.error.message}"
