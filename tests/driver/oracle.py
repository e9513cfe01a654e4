"""Computes the expected value of every id of a change set from the definitions alone, with no code of Rebaser.

Definitions are edits in the form of a file of updates (`{"op": "derive", "id": …}`), so no code of Rebaser is needed to
read them. The evaluator is written from the documentation: the README, and the output of `rebaser functions`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from tests.driver.formulas import INT64_MAX, INT64_MIN, Failed, Meaning, is_number

Wire: TypeAlias = dict[str, Any]
Book: TypeAlias = dict[str, Wire]  # the edit that last defined each id


class Found(NamedTuple):
    """The expected value of an id, or why it has none. `message` is given only where its text follows from the
    graph."""

    state: str
    value: Any = None
    code: str = ""
    origin: str = ""
    message: str = ""


def apply(book: Book, updates: Iterable[Wire]) -> None:
    """Apply updates to `book`. Removing a missing id does nothing, and unsetting a missing id creates it."""
    for update in updates:
        if update["op"] == "remove":
            book.pop(update["id"], None)
        else:
            book[update["id"]] = update


def conflicts(book: Book, updates: Iterable[Wire]) -> bool:
    """Return whether edits from another change set conflict because they remove a missing id."""
    here: dict[str, bool] = {}
    for update in updates:
        there = here.get(update["id"], update["id"] in book)
        if update["op"] == "remove" and not there:
            return True
        here[update["id"]] = update["op"] != "remove"
    return False


class Oracle:
    """All expected values of `book`. `formulas` has the meaning of each formula text that may occur."""

    def __init__(self, book: Book, formulas: Mapping[str, Meaning]) -> None:
        self._book = book
        self._formulas = formulas
        self._sorted = sorted(book)
        self._matched: dict[str, list[str]] = {}
        self.found: dict[str, Found] = {}
        inputs = {id_: list(self._inputs(one)) for id_, one in book.items()}
        for members in components({id_: [one for one in some if one in book] for id_, some in inputs.items()}):
            if len(members) > 1 or members[0] in inputs[members[0]]:
                fault = _cycle(sorted(members))
                self.found.update(dict.fromkeys(members, fault))
            else:
                [id_] = members
                self.found[id_] = self._value(book[id_], inputs[id_])

    def _inputs(self, definition: Wire) -> Iterator[str]:
        for given in definition["inputs"].values() if definition["op"] == "derive" else ():
            some = self._ids(given)
            yield from [some] if isinstance(some, str) else some

    def _ids(self, given: Any) -> str | list[str]:
        """Return an input with its patterns replaced by the ids that they match: one id, or a list."""
        if isinstance(given, str):
            return given
        ids: list[str] = []
        for one in given if isinstance(given, list) else [given]:
            ids += [one] if isinstance(one, str) else self._matching(one["match"])
        return ids

    def _matching(self, glob: str) -> list[str]:
        if glob not in self._matched:
            pattern = re.sub(r"\*\*+|\*|[^*]+", _as_regex, glob)
            self._matched[glob] = [id_ for id_ in self._sorted if re.fullmatch(pattern, id_, re.DOTALL)]
        return self._matched[glob]

    def _value(self, definition: Wire, inputs: list[str]) -> Found:
        if definition["op"] == "set":
            return Found("ok", definition["value"])
        if definition["op"] == "unset":
            return Found("unset")
        id_ = definition["id"]
        if definition["function"] not in FUNCTIONS:
            return Found("error", None, "unknown_function", id_)
        for one in inputs:
            if one not in self._book:
                return Found("error", None, "missing_input", id_, f"input {_quote(one)} does not exist")
            if (cause := self.found[one]).state == "error":
                code = self.found[cause.origin].code
                text = f"input {_quote(one)} failed" + ("" if code == "failed" else f": {code}")
                text += "" if cause.origin == one else f" in {_quote(cause.origin)}"
                return Found("error", None, "failed_input", cause.origin, text)
        try:
            return Found("ok", _storable(self._call(definition)))
        except Failed as failure:
            return Found("error", None, failure.code, id_)

    def _call(self, definition: Wire) -> Any:
        named: dict[str, Any] = {}
        spread: list[Any] = []
        for name, given in definition["inputs"].items():
            ids = self._ids(given)
            if isinstance(ids, str):
                named[name] = self.found[ids].value
                spread.append(named[name])
            else:
                named[name] = [self.found[one].value for one in ids]
                spread += named[name]
        params = definition["params"]
        if definition["function"] == "by_id":
            return {id_: self.found[id_].value for id_ in self._inputs(definition)}
        if definition["function"] == "cel":
            return self._formulas[params["expr"]](named)
        return FUNCTIONS[definition["function"]](spread, named, params)


def components(edges: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components, each after all that it reaches (Kosaraju's algorithm)."""
    against: dict[str, list[str]] = {}
    for id_, others in edges.items():
        for other in others:
            against.setdefault(other, []).append(id_)
    left: list[str] = []  # each id after all that it reaches, except within cycles
    seen: set[str] = set()
    for start in edges:
        left += walk(start, edges, seen)
    seen.clear()
    found = [walk(start, against, seen) for start in reversed(left)]
    yield from (members for members in reversed(found) if members)


def walk(start: str, edges: Mapping[str, list[str]], seen: set[str]) -> list[str]:
    """Return the ids that `start` reaches and that were not `seen`, in the postorder of a depth-first search."""
    left = []
    todo = [(start, False)]
    while todo:
        id_, leave = todo.pop()
        if leave:
            left.append(id_)
        elif id_ not in seen:
            seen.add(id_)
            todo.append((id_, True))
            todo += [(other, False) for other in edges.get(id_, ()) if other not in seen]
    return left


def _as_regex(part: "re.Match[str]") -> str:
    text = part.group()
    if not text.startswith("*"):
        return re.escape(text)
    return ".*" if len(text) > 1 else "[^/]*"


def _cycle(members: list[str]) -> Found:
    if len(members) == 1:
        text = f"{_quote(members[0])} depends on itself"
    else:
        more = f" and {len(members) - 32} more" if len(members) > 32 else ""
        text = f"these depend on each other: {', '.join(map(_quote, members[:32]))}{more}"
    return Found("error", None, "cycle", members[0], text)


def _quote(id_: str) -> str:
    return f"'{id_}'"


# -- functions ---------------------------------------------------------------------------------------------------------


def _spread(values: list[Any]) -> list[Any]:
    """Replace lists by their items and maps by their values, and leave null out."""
    out: list[Any] = []
    for value in values:
        out += value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
    return [value for value in out if value is not None]


def _numbers(values: list[Any]) -> list[Any]:
    out = _spread(values)
    if not all(map(is_number, out)):
        raise Failed
    return out


def _added(numbers: list[Any]) -> Any:
    if all(type(one) is int for one in numbers):
        return sum(numbers)
    try:
        return float(sum(Fraction(float(one)) for one in numbers))  # the exact sum of the doubles, rounded once
    except OverflowError:
        raise Failed("not_finite") from None


def _product(values: list[Any], *_: Any) -> Any:
    numbers = _numbers(values)
    if all(type(one) is int for one in numbers):
        return math.prod(numbers)
    result = 1.0
    for one in numbers:
        result *= one
    return result


def _mean(values: list[Any], *_: Any) -> Any:
    numbers = _numbers(values)
    return _added(numbers) / len(numbers) if numbers else None


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def extreme(values: list[Any], *_: Any) -> Any:
        some = _spread(values)
        if not all(isinstance(one, str) for one in some):
            some = _numbers(some)
        best = some[0] if some else None
        for one in some[1:]:
            best = one if better(one, best) else best
        return best

    return extreme


def _text(value: Any) -> str:
    if isinstance(value, (list, dict)):
        raise Failed
    return value if isinstance(value, str) else json.dumps(value)


def _join(values: list[Any], _: Any, params: Mapping[str, Any]) -> str:
    separator: str = params.get("separator", ", ")
    return separator.join([_text(one) for one in _spread(values)])


def _if(_: list[Any], named: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    condition = named.get("condition")
    if condition is not None and not isinstance(condition, bool):
        raise Failed
    name = "then" if condition else "else"
    return named[name] if name in named else params.get(name)


def _coalesce(values: list[Any], _: Any, params: Mapping[str, Any]) -> Any:
    return next((one for one in values if one is not None), params.get("default"))


def _length(values: list[Any], *_: Any) -> Any:
    if len(values) != 1 or isinstance(values[0], (int, float)):
        raise Failed
    return None if values[0] is None else len(values[0])


def _union(values: list[Any], *_: Any) -> list[Any]:
    out: dict[str, Any] = {}
    for one in values:
        for item in one if isinstance(one, list) else [one]:
            if item is not None:
                out.setdefault(f"{type(item).__name__} {json.dumps(item, sort_keys=True)}", item)
    return list(out.values())


def _absolute(values: list[Any], *_: Any) -> Any:
    if len(values) != 1:
        raise Failed
    numbers = _numbers(values)
    if len(numbers) > 1:
        return abs(numbers[0])
    return abs(numbers[0]) if numbers else None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cel": lambda *_: None,  # computed by its formula
    "by_id": lambda *_: None,  # computed from the ids
    "sum": lambda values, *_: _added(_numbers(values)),
    "product": _product,
    "mean": _mean,
    "min": _extreme(lambda one, best: one < best),
    "max": _extreme(lambda one, best: one > best),
    "count": lambda values, *_: len(_spread(values)),
    "abs": _absolute,
    "concat": lambda values, *_: "".join(map(_text, _spread(values))),
    "join": _join,
    "if": _if,
    "coalesce": _coalesce,
    "object": lambda _, named, params: {**params, **named},
    "list": lambda values, *_: values,
    "length": _length,
    "union": _union,
}


def _storable(value: Any) -> Any:
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise Failed("overflow")
    if type(value) is float and not math.isfinite(value):
        raise Failed("not_finite")
    return value


def typed(value: Any) -> str:
    """Return a text that is equal for identical values: `1`, `1.0` and `true` differ, and the order of a map does not
    count."""
    return json.dumps(value, sort_keys=True)
