"""Defines the instructions of compiled code, and programs made of instructions.

Invariant: translators, tests and the kernel use the same number for an instruction. These numbers never leave a
process, so a release may change them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rebaser_core.values import Json

# An instruction is (op, to, left, right): apply `op` to the operands `left` and `right`, and write the result into the
# register `to`. A program stops if an operand has a kind that the operator does not accept.
(
    RETURN,  # the program ends, and its result is `left`
    MOVE,  # the result is `left`
    TRUTH,  # like MOVE, but only for a boolean
    JUMP,  # continue at instruction `right`
    JUMP_IF_NOT,  # like JUMP, but only if `left` is false
    JUMP_IF_NOTHING,  # like JUMP, but only if `left` is false or null
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    REMAINDER,
    EQUAL,
    UNEQUAL,
    LESS,
    LESS_EQUAL,
    GREATER,
    GREATER_EQUAL,
    NOT,
    NEGATE,
    MAGNITUDE,
    CEIL,
    FLOOR,
    ROUND,
    ROOT,
    TO_INT,
    TO_DOUBLE,
    GREATEST,
    LEAST,
    # Reductions: functions of all inputs of a node.
    REDUCE_SUM,
    REDUCE_PRODUCT,
    REDUCE_MEAN,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_COUNT,
    REDUCE_ABS,
    REDUCE_ROUND,  # rounds to `left` decimals
    REDUCE_COALESCE,  # gives the first input that is not null, or `left` if there is none
) = range(37)

INPUTS = 64  # number of registers for inputs; only a program that is a single REDUCE_ instruction takes more inputs
FIRST_CONSTANT = 512  # the first register of constants; registers from INPUTS to this one are for intermediate results

Instruction: TypeAlias = tuple[int, int, int, int]


class NotCompiled(Exception):  # noqa: N818 - not an error, because Python then computes the value
    """Raised if a definition cannot be translated into instructions."""


@dataclass(slots=True)
class Program:
    """The instructions that compute a value, and their constants. An operand is the number of a register, or `~k` for
    constant `k`. The target of a jump is the index of an instruction."""

    instructions: list[Instruction] = field(default_factory=list)
    constants: list[Json] = field(default_factory=list)
    _next: int = INPUTS

    def constant(self, value: Json) -> int:
        """Add a constant: null, a boolean or a number. Return its operand. Raise `NotCompiled` for any other value."""
        if not (value is None or isinstance(value, (bool, int, float))):
            raise NotCompiled
        self.constants.append(value)
        return -len(self.constants)

    def register(self) -> int:
        """Return an unused register, and reserve it. Raise `NotCompiled` if all registers are in use."""
        if self._next == FIRST_CONSTANT:
            raise NotCompiled
        self._next += 1
        return self._next - 1

    def add(self, op: int, left: int, right: int = 0, *, to: int | None = None) -> int:
        """Add an instruction. Return the register into which it writes its result."""
        target = self.register() if to is None else to
        self.instructions.append((op, target, left, right))
        return target

    def jump(self, op: int, left: int = 0) -> int:
        """Add a jump, and return its index. Call `land` later to set its target."""
        self.instructions.append((op, 0, left, 0))
        return len(self.instructions) - 1

    def land(self, jump: int) -> None:
        """Set the target of `jump` to the instruction that is added next."""
        op, to, left, _ = self.instructions[jump]
        self.instructions[jump] = (op, to, left, len(self.instructions))

    def placed(self, first: int, constants: int) -> list[Instruction]:
        """Return the instructions with their addresses adjusted for a longer array of instructions. In that array, this
        program begins at index `first`, and its constants are in the registers from `constants` on."""
        placed = []
        for op, to, left, right in self.instructions:
            target = right + first if JUMP <= op <= JUMP_IF_NOTHING else right
            placed.append(
                (op, to, left if left >= 0 else constants + ~left, target if target >= 0 else constants + ~target)
            )
        return placed


_DOUBLE, _INTEGER, _TRUTH = range(3)
_ARITHMETIC = frozenset({ADD, SUBTRACT, MULTIPLY, DIVIDE})
_KEEPS_INTEGER = frozenset({RETURN, NEGATE, MAGNITUDE, CEIL, FLOOR, ROUND, TO_INT})
_OVER_INTEGERS = frozenset({REDUCE_SUM, REDUCE_PRODUCT, REDUCE_MIN, REDUCE_MAX, REDUCE_COUNT})
_OVER_DOUBLES = frozenset({REDUCE_SUM, REDUCE_PRODUCT, REDUCE_MEAN, REDUCE_MIN, REDUCE_MAX, REDUCE_ABS})
_EXACT = 2**53  # a double represents every integer up to this limit exactly


def for_doubles(program: Program) -> Program | None:
    """Return a form of `program` for inputs that are all doubles. This form needs no checks of kinds, and its constants
    are doubles.

    Return None if `program` might compute something other than doubles and booleans from such inputs, or if this form
    might give another result than `program`.
    """
    if program.instructions[0][0] >= REDUCE_SUM:
        return program if program.instructions[0][0] in _OVER_DOUBLES else None
    types: dict[int, int | None] = dict.fromkeys(range(INPUTS), _DOUBLE)
    for index, constant in enumerate(program.constants):
        kind = {float: _DOUBLE, int: _INTEGER, bool: _TRUTH}.get(type(constant))
        types[~index] = None if kind == _INTEGER and abs(constant) > _EXACT else kind  # type: ignore[arg-type]
    return _typed(program, types, _type_of_doubles, float)


def for_integers(program: Program) -> Program | None:
    """Return a form of `program` for inputs that are all integers. This form needs no checks of kinds, and its
    constants are integers.

    Return None if `program` might compute something other than integers and booleans from such inputs.
    """
    if program.instructions[0][0] >= REDUCE_SUM:
        return program if program.instructions[0][0] in _OVER_INTEGERS else None
    types: dict[int, int | None] = dict.fromkeys(range(INPUTS), _INTEGER)
    for index, constant in enumerate(program.constants):
        types[~index] = {int: _INTEGER, bool: _TRUTH}.get(type(constant))
    return _typed(program, types, _type_of_integers, int)


def _typed(
    program: Program,
    types: dict[int, int | None],
    type_of_result: Callable[[int, int | None, int | None], int | None],
    convert: Callable[[Any], int | float],
) -> Program | None:
    """Return `program` with its constants converted by `convert`. Return None if `type_of_result` cannot determine the
    type of a result, or if a register may contain values of different types.

    `types` maps operands to their types; this function adds the registers that the program writes.
    """
    for op, to, left, right in program.instructions:
        if op == JUMP:
            continue
        result = type_of_result(op, types[left], types.get(right))
        if result is None or (op not in (RETURN, JUMP_IF_NOT) and types.setdefault(to, result) != result):
            return None
    return Program(
        program.instructions, [convert(0 if constant is None else constant) for constant in program.constants]
    )


def _type_of_integers(op: int, left: int | None, right: int | None) -> int | None:
    """Return the type of an instruction's result from the types of its operands, in the form for integers. Return None
    if the types of the operands do not determine it."""
    if ADD <= op <= REMAINDER or op in (GREATEST, LEAST):
        return _INTEGER if left == right == _INTEGER else None
    if EQUAL <= op <= GREATER_EQUAL:
        return _TRUTH if left == right == _INTEGER else None
    if op in (NOT, TRUTH, JUMP_IF_NOT):
        return _TRUTH if left == _TRUTH else None
    if op in _KEEPS_INTEGER:
        return _INTEGER if left == _INTEGER else None
    return left if op == MOVE else None


def _type_of_doubles(op: int, left: int | None, right: int | None) -> int | None:
    """Return the type of an instruction's result from the types of its operands, in the form for doubles. Return None
    if the types of the operands do not determine it."""
    if op in _ARITHMETIC or EQUAL <= op <= GREATER_EQUAL:
        if _TRUTH in (left, right) or None in (left, right) or _DOUBLE not in (left, right):
            return None
        return _DOUBLE if op in _ARITHMETIC else _TRUTH
    if op in (NOT, TRUTH, JUMP_IF_NOT):
        return _TRUTH if left == _TRUTH else None
    if op in (RETURN, NEGATE, MAGNITUDE):
        return _DOUBLE if left == _DOUBLE else None
    if op in (LEAST, GREATEST):
        return _DOUBLE if left == right == _DOUBLE else None
    if op == MOVE:
        return left if left in (_DOUBLE, _TRUTH) else None
    return None
