"""Draws formulas with their expected results, which follow from the rules of the language and from no other
evaluator."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Failed(Exception):  # noqa: N818 - what became of it
    """A function gave no value; `code` is the code of the fault."""

    def __init__(self, code: str = "failed") -> None:
        super().__init__(code)
        self.code = code


Values: TypeAlias = Mapping[str, Any]
Meaning: TypeAlias = Callable[[Values], Any]
Formula: TypeAlias = tuple[str, Meaning]


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def numeric(rng: random.Random, names: list[str]) -> Formula:
    """Draw a formula that mostly gives a small number, and contains each of `names`."""
    text, meaning = _calculation(rng, names)
    shape = rng.random()
    if shape < 0.5:  # values stay small along every path
        text, meaning = f"({text}) % {_MODULUS}", _binary("%", meaning, lambda _: _MODULUS)
    elif shape < 0.65:
        other, otherwise = _leaf(rng, names)
        left, first = _leaf(rng, names)
        sign = rng.choice(list(_ORDERS))
        text = f"{left} {sign} {other} ? {text} : {other}"
        meaning = _choice(_order(sign, first, otherwise), meaning, otherwise)
    elif shape < 0.7:
        text, meaning = f"math.abs({text})", _absolute(meaning)
    return text, meaning


def textual(rng: random.Random, names: list[str]) -> Formula:
    """Draw a formula over texts, whose result is little longer than its inputs."""
    first = names[0]
    word = rng.choice(["x", "größer", "", "ab/c", "😀"])
    roll = rng.random()
    if roll < 0.4:
        return f"{first} + '{word}'", _binary("+", _named(first), lambda _: word)
    if roll < 0.7:
        other = names[-1]
        return (
            f"{first} == '{word}' ? {other} : {first}",
            _choice(_order("==", _named(first), lambda _: word), _named(other), _named(first)),
        )
    return f"size({first})", _size(_named(first))


_MODULUS = 1009


def _calculation(rng: random.Random, names: list[str]) -> Formula:
    text, meaning = _leaf(rng, names[:1])
    for name in names[1:]:
        sign = rng.choice("++--**")
        text, meaning = f"({text} {sign} {name})", _binary(sign, meaning, _named(name))
    for _ in range(rng.randint(0, 2)):
        other, otherwise = _leaf(rng, names)
        sign = rng.choice("++-*/%")
        if rng.random() < 0.5:
            text, meaning = f"({text} {sign} {other})", _binary(sign, meaning, otherwise)
        else:
            text, meaning = f"({other} {sign} {text})", _binary(sign, otherwise, meaning)
    return text, meaning


def _leaf(rng: random.Random, names: list[str]) -> Formula:
    if rng.random() < 0.7:
        name = rng.choice(names)
        return name, _named(name)
    constant = rng.choice([1, 2, 3, 7, 10, 0, 0.5, 2.0, 1.25])
    return repr(constant), lambda _: constant


def _named(name: str) -> Meaning:
    return lambda values: values[name]


def _binary(sign: str, left: Meaning, right: Meaning) -> Meaning:
    return lambda values: calculate(sign, left(values), right(values))


def calculate(sign: str, left: Any, right: Any) -> Any:
    """Apply one operator: integers are exact, and with a double, the other operand becomes a double, too."""
    if sign == "+" and type(left) is type(right) and type(left) in (str, list):
        return left + right
    if not is_number(left) or not is_number(right):
        raise Failed
    whole = type(left) is int and type(right) is int
    if sign in "/%" and right == 0:
        raise Failed
    if not whole:
        left, right = float(left), float(right)
    if sign == "/":
        if whole and left % right == 0:
            return _fits(left // right)
        return left / right
    if sign == "%" and math.isinf(left):
        raise Failed
    if sign == "%":
        rest = math.fmod(left, right) if not whole else abs(left) % abs(right)
        return rest if not whole or left >= 0 else -rest
    result = {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right}[sign]()
    return _fits(result) if whole else result


def _fits(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise Failed("overflow")
    return value


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}


def _order(sign: str, left: Meaning, right: Meaning) -> Meaning:
    def holds(values: Values) -> bool:
        a, b = left(values), right(values)
        alike = (is_number(a) and is_number(b)) or type(a) is type(b)
        if sign in ("==", "!="):
            return (alike and a == b) == (sign == "==")
        if not alike or not isinstance(a, (int, float, str)):
            raise Failed
        return _ORDERS[sign](a, b)

    return holds


def _choice(condition: Meaning, then: Meaning, otherwise: Meaning) -> Meaning:
    return lambda values: then(values) if condition(values) else otherwise(values)


def _absolute(of: Meaning) -> Meaning:
    def absolute(values: Values) -> Any:
        value = of(values)
        if not is_number(value):
            raise Failed
        return abs(value) if type(value) is float else _fits(abs(value))

    return absolute


def _size(of: Meaning) -> Meaning:
    def size(values: Values) -> int:
        value = of(values)
        if not isinstance(value, (str, list, dict)):
            raise Failed
        return len(value)

    return size
