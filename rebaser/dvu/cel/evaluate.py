"""Evaluates formulas in the Common Expression Language (github.com/google/cel-spec) with `cel-expr-python`.

Invariant: operators on two integers or two doubles work as in CEL, except `/`. If only one operand is a double, the
other operand is converted to a double. So `a * b` works with 3 and 3.5, and no formula fails because `a` is 3 instead
of 3.0. `/` on two integers gives an integer if there is no remainder, otherwise a double: 6 / 2 is 3, 7 / 2 is 3.5.

How it works: this module adds overloads for mixed numbers to CEL's operators. It renames division in the syntax tree,
because CEL's own overloads cannot be replaced. Types are not checked before evaluation, so names need no declared
types.
"""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from rebaser.dvu import faults
from rebaser.dvu.wire.packet import estimated_size
from rebaser_core.cel import formulas
from rebaser_core.cel import syntax as cel_syntax
from rebaser_core.cel.formulas import ParsedFormula
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import INT64_MAX, INT64_MIN, Json

_MAX_BYTES = 1 << 30  # maximum bytes of the values that a formula may build; see `_check_growth`
# Each of these names is as long as the name that it replaces, so that it fits into the serialized tree. No formula can
# contain them, because they are not valid identifiers.
_DIVIDE, _REPLACE = "#/#", "#eplace"
_NAMES = {cel_syntax.DIVIDE: _DIVIDE, cel_syntax.REPLACE: _REPLACE}
_REPLACED_MAX = 32 * 1024  # maximum total characters of all results of `replace` in one evaluation

_INT, _DOUBLE, _DYN = cel.Type.INT, cel.Type.DOUBLE, cel.Type.DYN
_MIXED = ((_INT, _DOUBLE), (_DOUBLE, _INT))


class FormulaError(Exception):
    """Raised if a formula cannot be evaluated. The value gets a fault with this `code` and message."""

    def __init__(self, message: str, code: str = faults.FAILED) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Program:
    run: Any
    formula: ParsedFormula


def evaluate(inputs: Mapping[str, Json], expression: object) -> Json:
    """Return the value of the formula `expression`, in which each name in `inputs` stands for the value of that input.
    Raise `FormulaError` if the formula cannot be evaluated."""
    if not isinstance(expression, str):
        raise FormulaError(formulas.NO_FORMULA)
    program = _compile(expression)
    if isinstance(program, str):
        raise FormulaError(program)
    wrong = program.formula.wrong_names(tuple(inputs))
    if wrong:
        raise FormulaError(wrong)
    syntax = program.formula.syntax
    if syntax.macros or syntax.copies > 16 or syntax.times > 1:
        _check_growth(syntax, inputs, min(len(program.formula.tree), formulas.MAX_LENGTH))
    _room.left = _REPLACED_MAX
    try:
        return _plain(program.run.eval(data=inputs))
    except RuntimeError as error:
        raise _failure(str(error)) from None


def parsed(expression: str, names: tuple[str, ...]) -> bytes | None:
    """Return the serialized syntax tree of a formula whose inputs are `names`; None if the formula fails for all values
    of these inputs."""
    formula = formulas.read(expression)
    return None if isinstance(formula, str) or formula.wrong_names(names) else formula.tree


@lru_cache(formulas.CACHED)
def _compile(expression: str) -> _Program | str:
    """Return the compiled formula; if it cannot be compiled, return the reason as text."""
    formula = formulas.read(expression)
    if isinstance(formula, str):
        return formula
    tree = bytearray(formula.tree)
    for offset in formula.syntax.renamed:
        name = next(ours for theirs, ours in _NAMES.items() if tree.startswith(theirs.encode(), offset))
        tree[offset : offset + len(name)] = name.encode()
    try:
        return _Program(_ENVIRONMENT.deserialize(bytes(tree)), formula)
    except RuntimeError as error:
        return formulas.reason(str(error))


def _check_growth(syntax: cel_syntax.Syntax, inputs: Mapping[str, Json], length: int) -> None:
    """Raise `FormulaError` if a formula could build gigabytes, for instance by doubling a text in nested macros.

    The CEL library bounds the number of iterations, but not the sizes of values. Each operator or literal that copies
    its arguments may add the size of the inputs; inside a macro, it may do so for each element. `length` is the
    approximate length of the formula.
    """
    given_size = sum([estimated_size(value) for value in inputs.values()]) + length
    size = given_size + (_REPLACED_MAX if syntax.replaces else 0)
    bound = size * (syntax.copies + 1) * (syntax.repeated + 1) ** syntax.macros
    bound *= syntax.times ** max(syntax.macros, 1)
    if syntax.repeated:
        bound *= min(formulas.MAX_ITERATIONS, size if syntax.splits else size // 9)
    if bound > _MAX_BYTES:
        raise FormulaError(
            f"with these inputs, the formula could produce a value of more than {_MAX_BYTES} bytes", faults.TOO_LARGE
        )


def _plain(result: Any) -> Json:
    """Return the JSON value of a CEL value. `value()` must not be called on a null: cel-expr-python 0.1.3 then releases
    one reference to `None` too many, and after a few thousand calls, Python would free `None`. The type is therefore
    checked first, and lists and maps are converted item by item."""
    return _convert(result, [DEFAULT_LIMITS.max_value_bytes])


def _convert(item: Any, room: list[int]) -> Json:
    kind = item.type().name()
    if kind in ("INT", "DOUBLE", "BOOL", "UINT"):
        scalar: Json = item.value()
        return scalar
    if kind == "STRING":
        text: str = item.value()
        _spend(room, len(text))
        return text
    if kind == "NULL":
        return None
    if kind == "ERROR":
        raise _error(item)
    if kind.startswith("LIST"):
        children = item.value()
        _spend(room, len(children))
        return [_convert(child, room) for child in children]
    if kind.startswith("MAP"):
        entries = item.value()
        _spend(room, len(entries))
        return {key: _convert(child, room) for key, child in entries.items()}
    raise FormulaError(f"the result is of type {kind.lower()}, which JSON does not have")


def _error(item: Any) -> FormulaError:
    try:
        return _failure(item.value())
    except TypeError:  # cel-expr-python cannot convert a value of this type
        return FormulaError("the result is optional, which JSON does not have; end the formula with .orValue(...)")


def _spend(room: list[int], count: int) -> None:
    room[0] -= count
    if room[0] < 0:
        raise FormulaError(f"the result is larger than {DEFAULT_LIMITS.max_value_bytes} bytes", faults.TOO_LARGE)


def _failure(text: str) -> FormulaError:
    for theirs, ours in _NAMES.items():
        text = text.replace(ours, theirs)
    message = formulas.reason(text)
    return FormulaError(message, faults.OVERFLOW if "overflow" in message else faults.FAILED)


# -- operators ---------------------------------------------------------------------------------------------------------


def _divide(left: float, right: float) -> int | float:
    if not right:  # 0.0 is refused too, because an infinite result would fail later with a less specific message
        raise ZeroDivisionError("divide by zero")
    if isinstance(left, int) and isinstance(right, int) and not left % right:
        quotient = left // right
        if quotient > INT64_MAX:
            raise OverflowError("integer overflow")
        return quotient
    return left / right


def _remainder(left: float, right: float) -> float:
    if not right:
        raise ZeroDivisionError("modulus by zero")
    return math.fmod(left, right)  # the result has the sign of `left`, as for CEL's integers


class _Room(threading.local):
    left = 0


_room = _Room()


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old) if limit < 0 else min(limit, text.count(old))
    _room.left -= max(len(text), len(text) + count * (len(new) - len(old)))
    if _room.left < 0:
        raise ValueError(f"the results of all calls of replace together have more than {_REPLACED_MAX} characters")
    return text.replace(old, new, limit)


def _binary(name: str, call: Callable[[Any, Any], Any], pairs: tuple[tuple[Any, Any], ...]) -> Any:
    overloads = [
        cel.Overload(f"rebaser {name} {left.name()} {right.name()}", _DYN, [left, right], False, call)
        for left, right in pairs
    ]
    return cel.FunctionDecl(name, overloads)


def _unary(name: str, call: Callable[[float], float]) -> Any:
    """Return the declaration of `math.ceil` or a similar function. The result for a double is a double. An integer is
    not rounded; `math.abs` gives its absolute value."""
    for_integers = _magnitude if name == "math.abs" else int
    return cel.FunctionDecl(
        name,
        [
            cel.Overload(f"rebaser {name} INT", _INT, [_INT], False, for_integers),
            cel.Overload(f"rebaser {name} DOUBLE", _DOUBLE, [_DOUBLE], False, call),
        ],
    )


def _magnitude(value: int) -> int:
    if value == INT64_MIN:
        raise OverflowError("integer overflow")
    return abs(value)


def _round(value: float) -> float:
    """Round to the nearest integer. A half is rounded away from zero, as in spreadsheets."""
    if not math.isfinite(value):
        return value
    whole = math.trunc(value)
    return float(whole + int(math.copysign(1, value))) if abs(value - whole) >= 0.5 else float(whole)


def _sqrt(value: float) -> float:
    if value < 0:
        raise ValueError("square root of a negative number")
    return math.sqrt(value)


_STRING = cel.Type.STRING
_ALL = ((_INT, _INT), (_DOUBLE, _DOUBLE), *_MIXED)
_ENVIRONMENT = cel.NewEnv(
    extensions=[
        ext_strings.ExtStrings(),
        ext_optional.ExtOptional(),
        cel.CelExtension(
            "rebaser",
            [
                _binary("_+_", lambda left, right: left + right, _MIXED),
                _binary("_-_", lambda left, right: left - right, _MIXED),
                _binary("_*_", lambda left, right: left * right, _MIXED),
                _binary("_%_", _remainder, (*_MIXED, (_DOUBLE, _DOUBLE))),
                _binary(_DIVIDE, _divide, _ALL),
                _binary("math.greatest", max, _ALL),
                _binary("math.least", min, _ALL),
                _unary("math.abs", abs),
                _unary("math.ceil", lambda value: float(math.ceil(value)) if math.isfinite(value) else value),
                _unary("math.floor", lambda value: float(math.floor(value)) if math.isfinite(value) else value),
                _unary("math.round", _round),
                cel.FunctionDecl(
                    _REPLACE,
                    [
                        cel.Overload(f"rebaser replace {len(more)}", _STRING, [_STRING] * 3 + more, True, _replace)
                        for more in ([], [_INT])
                    ],
                ),
                cel.FunctionDecl(
                    "math.sqrt",
                    [cel.Overload(f"rebaser sqrt {of.name()}", _DOUBLE, [of], False, _sqrt) for of in (_INT, _DOUBLE)],
                ),
            ],
        ),
    ]
)
