"""The instructions that compiled code knows, and programs made of them.

Invariant: planner, tests and kernel mean the same number by the same name; numbers never leave a process.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rebaser_core.values import Json

# (op, to, left, right). Where an operand is not what an operator takes, the program stops.
(
    RETURN,  # left
    MOVE,
    TRUTH,  # move what has to be true or false
    JUMP,  # to instruction `right`
    JUMP_IF_NOT,  # if left is false
    JUMP_IF_NOTHING,  # if left is false or null
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
    # Over all inputs of a node.
    REDUCE_SUM,
    REDUCE_PRODUCT,
    REDUCE_MEAN,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_COUNT,
    REDUCE_ABS,
    REDUCE_ROUND,  # to `left` decimals
    REDUCE_COALESCE,  # or else left
) = range(37)

INPUTS = 64  # registers for inputs; what takes more and is no REDUCE_ is not compiled
CONSTANTS = 512  # where they start; between are those for what is computed on the way

Instruction: TypeAlias = tuple[int, int, int, int]


class NotCompiled(Exception):  # noqa: N818 - no error: it stays with Python
    """This cannot be said in instructions."""


@dataclass(slots=True)
class Program:
    """Instructions, their operands being registers, `~k` for constant k; jumps count from the first instruction."""

    instructions: list[Instruction] = field(default_factory=list)
    constants: list[Json] = field(default_factory=list)
    _next: int = INPUTS

    def constant(self, value: Json) -> int:
        """The operand for a null, boolean or number."""
        if not (value is None or isinstance(value, (bool, int, float))):
            raise NotCompiled
        self.constants.append(value)
        return -len(self.constants)

    def register(self) -> int:
        """A register of its own."""
        if self._next == CONSTANTS:
            raise NotCompiled
        self._next += 1
        return self._next - 1

    def add(self, op: int, left: int, right: int = 0, *, to: int | None = None) -> int:
        """Add an instruction; the register it writes."""
        target = self.register() if to is None else to
        self.instructions.append((op, target, left, right))
        return target

    def jump(self, op: int, left: int = 0) -> int:
        """Add a jump that `land` sends somewhere."""
        self.instructions.append((op, 0, left, 0))
        return len(self.instructions) - 1

    def land(self, jump: int) -> None:
        """Let `jump` lead to what is added next."""
        op, to, left, _ = self.instructions[jump]
        self.instructions[jump] = (op, to, left, len(self.instructions))

    def placed(self, first: int, constants: int) -> list[Instruction]:
        """The instructions where they run: from instruction `first` on, their constants from register `constants`."""
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
_EXACT = 2**53  # integers up to here are doubles too


def for_doubles(program: Program) -> Program | None:
    """The program for inputs that are all doubles, if all it computes then is doubles and truths: constants become
    doubles, and nobody need look at kinds. None if that would not be the same."""
    if program.instructions[0][0] >= REDUCE_SUM:
        return program if program.instructions[0][0] in _OVER_DOUBLES else None
    types: dict[int, int | None] = dict.fromkeys(range(INPUTS), _DOUBLE)
    for place, constant in enumerate(program.constants):
        kind = {float: _DOUBLE, int: _INTEGER, bool: _TRUTH}.get(type(constant))
        types[~place] = None if kind == _INTEGER and abs(constant) > _EXACT else kind  # type: ignore[arg-type]
    return _typed(program, types, _type_of_doubles, float)


def for_integers(program: Program) -> Program | None:
    """The program for inputs that are all integers, if all it computes then is integers and truths."""
    if program.instructions[0][0] >= REDUCE_SUM:
        return program if program.instructions[0][0] in _OVER_INTEGERS else None
    types: dict[int, int | None] = dict.fromkeys(range(INPUTS), _INTEGER)
    for place, constant in enumerate(program.constants):
        types[~place] = {int: _INTEGER, bool: _TRUTH}.get(type(constant))
    return _typed(program, types, _type_of_integers, int)


def _typed(
    program: Program,
    types: dict[int, int | None],
    gives: Callable[[int, int | None, int | None], int | None],
    number: Callable[[Any], int | float],
) -> Program | None:
    """The program with constants made by `number`, if each instruction gives something and each register is of one
    type; `types` of registers are added."""
    for op, to, left, right in program.instructions:
        if op == JUMP:
            continue
        result = gives(op, types[left], types.get(right))
        if result is None or (op not in (RETURN, JUMP_IF_NOT) and types.setdefault(to, result) != result):
            return None
    return Program(program.instructions, [number(0 if one is None else one) for one in program.constants])


def _type_of_integers(op: int, left: int | None, right: int | None) -> int | None:
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
    """What an instruction gives, None if that depends on more than types."""
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
