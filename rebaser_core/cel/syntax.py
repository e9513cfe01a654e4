"""Analyses the syntax tree of a formula, which the CEL library serializes as `cel.expr.ParsedExpr` (syntax.proto).

Invariant: text literals, comments and escapes are never mistaken for code, because nothing here reads the source text.
The analysis is not recursive. The parser limits the depth of the tree, and the length of the formula limits its size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

# Field numbers of syntax.proto.
ANY_VALUE, PARSED_EXPR = 2, 2
_IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 4, 5, 6, 7, 8, 9
NAME = 1
_OPERAND = 1
_TARGET, _FUNCTION, _ARGS = 1, 2, 3
_ELEMENTS = 1
_MESSAGE_NAME, _ENTRIES = 1, 2
_MAP_KEY, _ENTRY_VALUE = 3, 4
_ITER_VAR, _ITER_RANGE, _ACCU_VAR, _ACCU_INIT, _CONDITION, _STEP, _RESULT, _ITER_VAR2 = range(1, 9)

_ACCUMULATOR = "@result"  # the variable in which macros collect their results; this name is not valid in a formula
_NAMESPACE = "math"  # `math.ceil(x)` is parsed as if `math` were the name of an input
_OPTIONAL, _OF_OPTIONAL = "optional", frozenset({"of", "none", "ofNonZeroValue"})
_CONSTANT, _STRING = 3, 6
DIVIDE, REPLACE, JOIN = "_/_", "replace", "join"
RENAMED = frozenset({DIVIDE, REPLACE})
# Maps each function to the maximum ratio of the size of its result to the size of its arguments. `%.1000f` produces
# about 1,300 digits, and each part of a split text takes about 40 bytes.
_COPIES = {
    **dict.fromkeys(("_+_", "lowerAscii", "upperAscii", "trim", "reverse", "substring", "charAt", JOIN, REPLACE), 1),
    "split": 40,
    "format": 190,
}
TYPE_NAMES = frozenset(
    {"bool", "bytes", "double", "dyn", "google", "int", "list", "map", "null_type", "string", "type", "uint"}
)

_Field = tuple[int, int, int]  # field number, and the offsets of the start and the end of the field's bytes


@dataclass(frozen=True, slots=True)
class Syntax:
    """The result of analysing a formula.

    `names` are the free names, in order of appearance. `copies` is the number of times that the operators and literals
    outside of macros can copy their arguments. `repeated` is the same number for the parts of the formula that macros
    repeat. `macros` is the number of macros. `times` is the factor by which the separators of `join` can lengthen a
    text, or 0 if this factor is unknown. `renamed` contains the byte offsets at which the names of the operators and
    functions in `RENAMED` begin. `replaces`, `splits` and `messages` say whether the formula replaces text, splits
    text, or builds protocol buffer messages.
    """

    names: tuple[str, ...]
    copies: int
    repeated: int
    macros: int
    times: int
    renamed: tuple[int, ...]
    replaces: bool
    splits: bool
    messages: bool


_Todo = tuple[int, int, frozenset[str], bool]  # start and end of an expression, bound names, whether a macro repeats it


def read(data: bytes) -> Syntax:
    """Analyse a formula. `data` is what `Expression.serialize()` returns for a formula without type checking."""
    names: dict[str, None] = {}
    renamed: list[int] = []
    times = 1
    calls: set[str] = set()
    copies = [0, 0]
    macros = 0
    messages = False
    start, end = only(data, 0, len(data), ANY_VALUE)
    stack: list[_Todo] = [(*only(data, start, end, PARSED_EXPR), TYPE_NAMES, False)]
    while stack:
        start, end, bound, repeated = stack.pop()
        todo: list[_Todo] = []
        for number, left, right in fields(data, start, end):
            inner: list[tuple[int, int]] = []
            if number == _IDENT:
                name = text(data, *only(data, left, right, NAME)).removeprefix(".")
                if name not in bound:
                    names[name] = None
            elif number == _SELECT:
                inner = _all(data, left, right, _OPERAND)
            elif number == _CALL:
                function, grows, inner = _call(data, left, right)
                copies[repeated] += grows
                called = text(data, *function)
                calls.add(called)
                if called in RENAMED:
                    renamed.append(function[0])
                if called == JOIN:
                    times *= _separator(data, left, right)
            elif number == _LIST:
                inner = _all(data, left, right, _ELEMENTS)
                copies[repeated] += len(inner)
            elif number == _STRUCT:
                messages = messages or bool(_all(data, left, right, _MESSAGE_NAME))
                entries = _all(data, left, right, _ENTRIES)
                inner = [(a, b) for span in entries for n, a, b in fields(data, *span) if n in (_MAP_KEY, _ENTRY_VALUE)]
                copies[repeated] += len(entries)
            elif number == _COMPREHENSION:
                macros += 1
                todo.extend(_comprehension(data, left, right, bound, repeated=repeated))
            todo.extend((*span, bound, repeated) for span in inner)
        stack.extend(reversed(todo))
    return Syntax(
        names=tuple(names),
        copies=copies[False],
        repeated=copies[True],
        macros=macros,
        times=times,
        renamed=tuple(renamed),
        replaces=REPLACE in calls,
        splits="split" in calls,
        messages=messages,
    )


def _call(data: bytes, start: int, end: int) -> tuple[tuple[int, int], int, list[tuple[int, int]]]:
    """Return three facts about the call in `data[start:end]`.

    They are the span of the function's name, the number of times that the function copies its arguments, and the spans
    of the operands (target and arguments) that still have to be analysed.
    """
    parts = list(fields(data, start, end))
    function = next((a, b) for n, a, b in parts if n == _FUNCTION)
    target = [(a, b) for n, a, b in parts if n == _TARGET]
    args = [(a, b) for n, a, b in parts if n == _ARGS]
    called = text(data, *function)
    name = ident(data, *target[0]) if target else None
    if name == _NAMESPACE or (name == _OPTIONAL and called in _OF_OPTIONAL):
        target = []
    if called != "_+_":
        return function, _COPIES.get(called, 0), target + args
    if ident(data, *args[0]) == _ACCUMULATOR:  # a macro adds `@result + [item]`; the user wrote only the item
        lists = [(a, b) for n, a, b in fields(data, *args[1]) if n == _LIST]
        return function, 0, [item for span in lists for item in _all(data, *span, _ELEMENTS)]
    return function, 1, args


def _separator(data: bytes, start: int, end: int) -> int:
    """Return the factor by which a call of `join` can lengthen its argument, or 0 if its separator is not a literal."""
    args = _all(data, start, end, _ARGS)
    if not args:
        return 1
    constants = _all(data, *args[0], _CONSTANT)
    return 1 + sum(b - a for a, b in _all(data, *constants[0], _STRING)) if constants else 0


def _comprehension(data: bytes, start: int, end: int, bound: frozenset[str], *, repeated: bool) -> list[_Todo]:
    parts = {n: (a, b) for n, a, b in fields(data, start, end)}
    accumulator = bound | {text(data, *parts[_ACCU_VAR])}
    inside = accumulator | {text(data, *parts[n]) for n in (_ITER_VAR, _ITER_VAR2) if n in parts}
    scopes = (
        (_ITER_RANGE, bound, repeated),
        (_ACCU_INIT, bound, repeated),
        (_CONDITION, inside, True),
        (_STEP, inside, True),
        (_RESULT, accumulator, repeated),
    )
    return [(*parts[number], names, again) for number, names, again in scopes if number in parts]


def ident(data: bytes, start: int, end: int) -> str | None:
    """Return the name if the expression in `data[start:end]` is a single name; otherwise return None."""
    for number, left, right in fields(data, start, end):
        if number == _IDENT:
            return text(data, *only(data, left, right, NAME))
    return None


def text(data: bytes, start: int, end: int) -> str:
    return data[start:end].decode()


def _all(data: bytes, start: int, end: int, wanted: int) -> list[tuple[int, int]]:
    return [(left, right) for number, left, right in fields(data, start, end) if number == wanted]


def only(data: bytes, start: int, end: int, wanted: int) -> tuple[int, int]:
    return next((left, right) for number, left, right in fields(data, start, end) if number == wanted)


def fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """Yield the length-delimited fields of a protocol buffer message, and skip its other fields (see
    protobuf.dev/programming-guides/encoding)."""
    while at < end:
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == 2:
            size, at = varint(data, at)
            yield tag >> 3, at, at + size
            at += size
        elif wire == 0:
            _, at = varint(data, at)
        else:
            at += 8 if wire == 1 else 4


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
