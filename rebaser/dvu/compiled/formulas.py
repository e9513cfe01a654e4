"""Translates parsed formulas over numbers into programs: arithmetic, comparison, choice and logic.

Invariant: an expression is compiled only if the program gives the same result as CEL, to the last bit. A program stops
where CEL would raise an error, and Python then computes the node. For example, `a && b` is false in CEL if `b` is
false, even if `a` raises an error. A program may nevertheless evaluate `a` first: if `a` fails, the program stops, and
Python gives the correct result.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final

from rebaser.dvu.compiled import instructions
from rebaser.dvu.compiled.instructions import NotCompiled, Program
from rebaser_core.cel import syntax
from rebaser_core.values import Json

# These are the field numbers of syntax.proto, in which CEL defines its syntax tree.
_CONSTANT, _IDENT, _CALL = 3, 4, 6
_TARGET, _FUNCTION, _ARGS = 1, 2, 3
_NULL, _BOOL, _INT, _DOUBLE = 1, 2, 3, 5

_OPERATORS: Final = {
    ("", "_+_", 2): instructions.ADD,
    ("", "_-_", 2): instructions.SUBTRACT,
    ("", "_*_", 2): instructions.MULTIPLY,
    ("", "_/_", 2): instructions.DIVIDE,
    ("", "_%_", 2): instructions.REMAINDER,
    ("", "_==_", 2): instructions.EQUAL,
    ("", "_!=_", 2): instructions.UNEQUAL,
    ("", "_<_", 2): instructions.LESS,
    ("", "_<=_", 2): instructions.LESS_EQUAL,
    ("", "_>_", 2): instructions.GREATER,
    ("", "_>=_", 2): instructions.GREATER_EQUAL,
    ("", "!_", 1): instructions.NOT,
    ("", "-_", 1): instructions.NEGATE,
    ("", "int", 1): instructions.TO_INT,
    ("", "double", 1): instructions.TO_DOUBLE,
    ("math", "abs", 1): instructions.MAGNITUDE,
    ("math", "ceil", 1): instructions.CEIL,
    ("math", "floor", 1): instructions.FLOOR,
    ("math", "round", 1): instructions.ROUND,
    ("math", "sqrt", 1): instructions.ROOT,
    ("math", "greatest", 2): instructions.GREATEST,
    ("math", "least", 2): instructions.LEAST,
}

_Span = tuple[int, int]


def compile_formula(tree: bytes, inputs: Mapping[str, int]) -> Program:
    """Return the program of a formula. `tree` is its serialized syntax tree. `inputs` maps the name of each input to
    its register. Raise `NotCompiled` if the formula cannot be translated."""
    compiler = _Compiler(tree, inputs)
    parsed = syntax.only(tree, *syntax.only(tree, 0, len(tree), syntax.ANY_VALUE), syntax.PARSED_EXPR)
    compiler.program.add(instructions.RETURN, compiler.operand(parsed), to=0)
    return compiler.program


class _Compiler:
    def __init__(self, tree: bytes, inputs: Mapping[str, int]) -> None:
        self.program = Program()
        self._tree = tree
        self._inputs = inputs
        self._special: dict[tuple[str, str, int], Callable[[list[_Span]], int]] = {
            ("", "_?_:_", 3): self._choice,
            ("", "_&&_", 2): self._both,
            ("", "_||_", 2): self._either,
        }

    def operand(self, span: _Span) -> int:
        """Add the instructions of the expression at `span`, and return the operand that contains its value. The
        recursion is bounded, because the parser bounds the depth of expressions."""
        tree = self._tree
        for number, start, end in syntax.fields(tree, *span):
            if number == _CONSTANT:
                return self.program.constant(_constant(tree, start, end))
            if number == _IDENT:
                return self._name(syntax.text(tree, *syntax.only(tree, start, end, syntax.NAME)))
            if number == _CALL:
                return self._call(start, end)
        raise NotCompiled

    def _name(self, name: str) -> int:
        if name not in self._inputs or name in syntax.TYPE_NAMES:
            raise NotCompiled
        return self._inputs[name]

    def _call(self, start: int, end: int) -> int:
        tree = self._tree
        parts = list(syntax.fields(tree, start, end))
        function = next(syntax.text(tree, left, right) for number, left, right in parts if number == _FUNCTION)
        args = [(left, right) for number, left, right in parts if number == _ARGS]
        target = next((syntax.ident(tree, left, right) for number, left, right in parts if number == _TARGET), "")
        key = (target or "", function, len(args))
        if target is None:
            raise NotCompiled
        if key in self._special:
            return self._special[key](args)
        if key not in _OPERATORS:
            raise NotCompiled
        left = self.operand(args[0])
        return self.program.add(_OPERATORS[key], left, self.operand(args[1]) if len(args) > 1 else 0)

    def _choice(self, args: list[_Span]) -> int:
        program = self.program
        to = program.register()
        otherwise = program.jump(instructions.JUMP_IF_NOT, self.operand(args[0]))
        program.add(instructions.MOVE, self.operand(args[1]), to=to)
        end = program.jump(instructions.JUMP)
        program.land(otherwise)
        program.add(instructions.MOVE, self.operand(args[2]), to=to)
        program.land(end)
        return to

    def _both(self, args: list[_Span]) -> int:
        program = self.program
        to = program.add(instructions.TRUTH, self.operand(args[0]))
        end = program.jump(instructions.JUMP_IF_NOT, to)
        program.add(instructions.TRUTH, self.operand(args[1]), to=to)
        program.land(end)
        return to

    def _either(self, args: list[_Span]) -> int:
        program = self.program
        to = program.add(instructions.TRUTH, self.operand(args[0]))
        otherwise = program.jump(instructions.JUMP_IF_NOT, to)
        end = program.jump(instructions.JUMP)
        program.land(otherwise)
        program.add(instructions.TRUTH, self.operand(args[1]), to=to)
        program.land(end)
        return to


def _constant(tree: bytes, start: int, end: int) -> Json:
    tag, position = syntax.varint(tree, start)
    number = tag >> 3
    if number == _DOUBLE:
        value: float = struct.unpack_from("<d", tree, position)[0]
        return value
    if number not in (_NULL, _BOOL, _INT):
        raise NotCompiled
    integer, position = syntax.varint(tree, position)
    if position != end:
        raise NotCompiled
    if number == _NULL:
        return None
    return bool(integer) if number == _BOOL else integer - (1 << 64) if integer >> 63 else integer
