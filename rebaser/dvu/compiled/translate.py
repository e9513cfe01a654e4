"""Translates definitions over numbers into programs that compiled code can run.

Invariant: a program either gives the same result as the function, with the same type and bits, or stops, so that Python
computes the value (see `rebaser.dvu.compiled.kernel`). A program never gives a fault. A definition that cannot be
translated only takes longer to compute.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import cbor2

from rebaser.dvu.cel import evaluate
from rebaser.dvu.compiled import formulas, instructions
from rebaser.dvu.compiled.instructions import NotCompiled, Program
from rebaser.dvu.functions import collections, formula, numbers
from rebaser.dvu.functions.base import Function, Params
from rebaser.dvu.wire.packet import DefinitionTemplate

_Inputs = tuple[tuple[str, int], ...]

_REDUCTIONS: Final = {
    numbers.sum_: instructions.REDUCE_SUM,
    numbers.product: instructions.REDUCE_PRODUCT,
    numbers.mean: instructions.REDUCE_MEAN,
    numbers.min_: instructions.REDUCE_MIN,
    numbers.max_: instructions.REDUCE_MAX,
    numbers.count: instructions.REDUCE_COUNT,
    numbers.abs_: instructions.REDUCE_ABS,
}


def translate(template: DefinitionTemplate, function: Function | None) -> Program | None:
    """Return the program of a definition that calls `function`; None if it cannot be translated."""
    if function is None:
        return None
    translator = _BY_FUNCTION.get(id(function))
    return _translated(translator, template.inputs, cbor2.dumps(template.params)) if translator else None


@lru_cache(maxsize=4096)
def _translated(translator: "_Translator", inputs: _Inputs, params: bytes) -> Program | None:
    try:
        return translator(inputs, cbor2.loads(params))
    except NotCompiled:
        return None


def _reduction(op: int) -> "_Translator":
    def translator(_inputs: _Inputs, _params: Params) -> Program:
        program = Program()
        program.add(op, 0, to=0)
        return program

    return translator


def _round(_inputs: _Inputs, params: Params) -> Program:
    digits = params.get("digits", 0)
    if type(digits) is not int or not 0 <= digits <= 15:
        raise NotCompiled
    program = Program()
    program.add(instructions.REDUCE_ROUND, digits, to=0)
    return program


def _coalesce(_inputs: _Inputs, params: Params) -> Program:
    program = Program()
    program.add(instructions.REDUCE_COALESCE, program.constant(params.get("default")), to=0)
    return program


def _if(inputs: _Inputs, params: Params) -> Program:
    program = Program()
    registers = _registers(inputs)

    def operand(name: str) -> int:
        return registers[name] if name in registers else program.constant(params.get(name))

    if any(name in ("condition", "then", "else") and name not in registers for name, _ in inputs):
        raise NotCompiled  # one of these inputs is a list of values
    condition = registers["condition"] if "condition" in registers else program.constant(None)
    otherwise = program.jump(instructions.JUMP_IF_NOTHING, condition)
    program.add(instructions.RETURN, operand("then"), to=0)
    program.land(otherwise)
    program.add(instructions.RETURN, operand("else"), to=0)
    return program


def _cel(inputs: _Inputs, params: Params) -> Program:
    expression = params.get("expr")
    tree = evaluate.parsed(expression, tuple(name for name, _ in inputs)) if isinstance(expression, str) else None
    if tree is None:
        raise NotCompiled
    return formulas.compile_formula(tree, _registers(inputs))


def _registers(inputs: _Inputs) -> Mapping[str, int]:
    """Return the register of each input that is a single value, not a list, by name. Raise `NotCompiled` if there are
    too many inputs."""
    registers: dict[str, int] = {}
    register = 0
    for name, count in inputs:
        if count < 0:
            registers[name] = register
        register += abs(count)
    if register > instructions.INPUTS:
        raise NotCompiled
    return registers


_Translator = Callable[[_Inputs, Params], Program]
_BY_FUNCTION: Final[dict[int, _Translator]] = {
    **{id(function): _reduction(op) for function, op in _REDUCTIONS.items()},
    id(numbers.round_): _round,
    id(collections.coalesce): _coalesce,
    id(collections.if_): _if,
    id(formula.cel_): _cel,
}
