"""Draws graphs and edits of them, in the form of a file of updates.

The ids of derived values consist of their kind and a number. Most derived values use earlier ones: inputs (`in`),
numbers (`num`), texts (`txt`), lists (`lst`), and the matches of patterns (`pat`). Some edits break this order, and
later edits restore it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.driver import formulas
from tests.driver.formulas import Meaning
from tests.driver.oracle import Book, Wire, apply

COMMON = "in/common"
BARRIER = "in/barrier"
ODD: list[Any] = [
    None,
    True,
    False,
    "x",
    "größer",
    "",
    0,
    -1,
    2**62,
    0.5,
    -2.25,
    1e300,
    [1, 2, None],
    {"a": 1, "b": 2.5},
]
REDUCING = ["sum", "sum", "max", "min", "mean", "count", "product"]


@dataclass(frozen=True)
class Shape:
    """The shape of a graph: it has `size` values, `common` is the share of its numbers that use `COMMON`, and `near` is
    how far back they look for inputs."""

    size: int
    common: float
    near: int
    deep: float

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        size = round(300 * 20 ** rng.random())
        return cls(size, rng.choice([0.1, 0.6, 1.0]), rng.choice([3, 30, size]), rng.choice([0.05, 0.3, 0.7]))


class Editor:
    """Draws the edits of one client of a change set. `book` is only roughly the present state, because other clients
    edit at the same time."""

    def __init__(self, rng: random.Random, shape: Shape, meanings: dict[str, Meaning]) -> None:
        self.rng = rng
        self.shape = shape
        self.book: Book = {}
        self._meanings = meanings
        size = shape.size
        self._groups = max(3, size // 60)
        self._flags = [f"in/flag/{at}" for at in range(6)]
        self.inputs = [COMMON, *self._flags, *(f"in/{at % self._groups}/{at}" for at in range(size // 5))]
        self._plain_inputs = [id_ for id_ in self.inputs if id_ not in self._flags]
        self.numbers = [f"num/{at % self._groups}/{at}" for at in range(size * 6 // 10)]
        self.texts = [f"txt/{at % self._groups}/{at}" for at in range(size // 8)]
        self.lists = [f"lst/{at}" for at in range(size // 40 + 2)]
        self.patterns = [f"pat/{at}" for at in range(min(40, size // 40 + 3))]
        self._place = {id_: at for at, id_ in enumerate(self.numbers)}
        self._new = 0
        self._loops: list[Wire] = []  # edits that end the cycles that were made

    def initial(self) -> list[Wire]:
        derived = [*self.numbers, *self.texts, *self.lists, *self.patterns]
        return self._noted([*(self._usual(id_) for id_ in [*self.inputs, *derived])])

    def batch(self) -> list[Wire]:
        """Return the edits of one request."""
        kinds: list[tuple[Callable[[], list[Wire]], int]] = [
            (self._touch_all, 14),
            (self._set_some, 16),
            (self._odd, 6),
            (self._unset, 5),
            (self._remove_derived, 10),
            (self._remove_inputs, 7),
            (self._remove_nothing, 6),
            (self._swap, 10),
            (self._bring_back, 12),
            (self._derive_again, 12),
            (self._same_again, 5),
            (self._set_over_derived, 6),
            (self._derive_over_input, 3),
            (self._members, 9),
            (self._loop, 5),
            (self._mend_loop, 6),
            (self._missing, 3),
            (self._many, 3),
        ]
        makers, weights = zip(*kinds, strict=True)
        count = self.rng.choices((1, 2, 3), (6, 2, 1))[0]
        return self._noted([one for make in self.rng.choices(makers, weights, k=count) for one in make()])

    def touching_all(self) -> list[Wire]:
        return self._noted(self._touch_all())

    def removing(self) -> list[Wire]:
        """Return edits that remove values that are being computed, and inputs of these."""
        makers: list[Callable[[], list[Wire]]] = [
            *[self._swap, self._swap, self._remove_derived, self._remove_derived, self._remove_inputs],
            *[self._bring_back, self._unset, self._set_over_derived, self._derive_again, self._same_again],
            *[self._members, self._remove_nothing],
        ]
        return self._noted(self.rng.choice(makers)())

    def foreign(self) -> list[Wire]:
        """Return a batch that may be refused, so `book` does not change."""
        before, loops = dict(self.book), list(self._loops)
        updates = self.batch()
        self.book, self._loops = before, loops
        return updates

    def healing(self) -> list[Wire]:
        """Return edits that repair most broken values, so that something is left to compute."""
        loops, self._loops = self._loops, []
        gone = [id_ for id_ in [*self.inputs, *self.numbers, *self.texts] if id_ not in self.book]
        odd = [id_ for id_ in self.inputs if type(self.book.get(id_, {}).get("value")) not in (int, bool)]
        return self._noted([*loops, *(self._usual(id_) for id_ in [*gone, *odd] if self.rng.random() < 0.9)])

    def _noted(self, updates: list[Wire]) -> list[Wire]:
        apply(self.book, updates)
        return updates

    # -- definitions -----------------------------------------------------------------------------------------------

    def _usual(self, id_: str) -> Wire:
        """Return the usual definition of `id_`."""
        kind = id_.partition("/")[0]
        if kind == "num":
            return self._number(id_, self._place[id_])
        if kind == "txt":
            return self._text(id_)
        if kind == "lst":
            return self._list(id_)
        if kind == "pat":
            return self._pattern(id_)
        return self._set(id_)

    def _set(self, id_: str) -> Wire:
        flag = id_.startswith("in/flag/")
        return {"op": "set", "id": id_, "value": self.rng.choice([True, False, None]) if flag else self._plain()}

    def _plain(self) -> Any:
        rng = self.rng
        return rng.randrange(-50, 1000) if rng.random() < 0.85 else rng.randrange(-400, 4000) / 4

    def _before(self, at: int) -> str:
        """Return an id that the number at `at` may use."""
        rng = self.rng
        if at and rng.random() < self.shape.deep:
            return self.numbers[rng.randrange(max(0, at - self.shape.near), at)]
        return rng.choice(self.inputs if rng.random() < 0.05 else self._plain_inputs)

    def _number(self, id_: str, at: int) -> Wire:
        rng = self.rng
        some = [self._before(at) for _ in range(rng.choice([1, 2, 2, 3, 5]))]
        if rng.random() < self.shape.common:
            some[rng.randrange(len(some))] = COMMON
        roll = rng.random()
        if roll < 0.6:
            names = [f"n{number}" for number in range(len(some))]
            return self._formula(id_, dict(zip(names, some, strict=True)), formulas.numeric(rng, names))
        if roll < 0.66:
            return _derive(id_, "coalesce", {"of": some}, {"default": rng.choice([0, 7, None])})
        if roll < 0.7:
            return _derive(id_, "if", {"condition": rng.choice(self._flags), "then": some[0]}, {"else": at})
        function = rng.choice(REDUCING)
        return _derive(
            id_, function, {"of": some} if rng.random() < 0.8 else {f"a{n}": one for n, one in enumerate(some)}
        )

    def _formula(self, id_: str, inputs: dict[str, Any], formula: formulas.Formula) -> Wire:
        text, meaning = formula
        self._meanings[text] = meaning
        return _derive(id_, "cel", inputs, {"expr": text})

    def _text(self, id_: str) -> Wire:
        rng = self.rng
        some = [rng.choice([*self.inputs, *self.numbers]) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:  # at most one earlier text, so that lengths do not double with each value
            some[0] = rng.choice([one for one in (self.texts[0], rng.choice(self.texts)) if one < id_] or some[:1])
        roll = rng.random()
        if roll < 0.4:
            return _derive(id_, "concat", {"of": some})
        if roll < 0.7:
            return _derive(id_, "join", {"of": some}, {"separator": rng.choice(["-", ", ", ""])})
        names = ["a", "b"][: len(some)]
        return self._formula(id_, dict(zip(names, some, strict=False)), formulas.textual(rng, names))

    def _list(self, id_: str) -> Wire:
        rng = self.rng
        some = [rng.choice([*self.inputs, *self.numbers, *self.texts]) for _ in range(rng.randint(0, 8))]
        if rng.random() < 0.2:
            return _derive(id_, "object", {f"k{at}": one for at, one in enumerate(some)}, {"k0": 1, "p": [2]})
        return _derive(id_, rng.choice(["list", "union", "count"]), {"of": some})

    def _glob(self) -> str:
        rng = self.rng
        group = rng.randrange(self._groups)
        return rng.choice(
            [
                f"in/{group}/*",
                f"in/{group}/*",
                f"num/{group}/*",
                f"num/*/{rng.randrange(10)}*",
                f"in/*/*{rng.randrange(10)}",
                f"new/{rng.randrange(3)}/*",
                "new/**",
                f"*/{group}/**",
                "in/**",
                f"**/{rng.randrange(100)}",
                "none/*",
            ]
        )

    def _pattern(self, id_: str) -> Wire:
        rng = self.rng
        some: list[Any] = [{"match": self._glob()} for _ in range(rng.choice([1, 1, 2]))]
        if rng.random() < 0.3:
            some.insert(rng.randrange(len(some) + 1), rng.choice(self.inputs))
        given: Any = some[0] if len(some) == 1 and rng.random() < 0.5 else some
        return _derive(
            id_, rng.choice(["sum", "count", "max", "mean", "list", "concat", "min", "by_id"]), {"of": given}
        )

    # -- edits -----------------------------------------------------------------------------------------------------

    def _some(self, ids: list[str], most: int = 30) -> list[str]:
        """Return mostly a few ids, and now and then a run of adjacent ones."""
        rng = self.rng
        count = min(len(ids), round(most ** rng.random()))
        if rng.random() < 0.3:
            at = rng.randrange(len(ids) - count + 1)
            return ids[at : at + count]
        return rng.sample(ids, count)

    def _derived(self) -> list[str]:
        return self.rng.choice([self.numbers, self.numbers, self.numbers, self.texts, self.lists, self.patterns])

    def _touch_all(self) -> list[Wire]:
        return [{"op": "set", "id": COMMON, "value": self._plain()}]

    def _set_some(self) -> list[Wire]:
        return [self._set(id_) for id_ in self._some(self.inputs, 60)]

    def _odd(self) -> list[Wire]:
        some = self._some(self.inputs[1:], 3)
        return [{"op": "set", "id": id_, "value": self.rng.choice(ODD)} for id_ in some]

    def _unset(self) -> list[Wire]:
        return [{"op": "unset", "id": id_} for id_ in self._some(self.rng.choice([self.inputs, self._derived()]), 5)]

    def _remove_derived(self) -> list[Wire]:
        return [{"op": "remove", "id": id_} for id_ in self._some(self._derived())]

    def _remove_inputs(self) -> list[Wire]:
        some = self._some(self.inputs[1:] if self.rng.random() < 0.9 else self.inputs, 4)
        return [{"op": "remove", "id": id_} for id_ in some]

    def _remove_nothing(self) -> list[Wire]:
        return [{"op": "remove", "id": f"nosuch/{self.rng.randrange(9)}"} for _ in range(self.rng.randint(1, 3))]

    def _swap(self) -> list[Wire]:
        """Remove some values, and create others or the same ones, which get the rows of the removed ones."""
        rng = self.rng
        out: list[Wire] = []
        for id_ in self._some(rng.choice([self.inputs[1:], self._derived()]), 20):
            out.append({"op": "remove", "id": id_})
            out += [self._usual(id_)] if rng.random() < 0.5 else self._member()
        return out

    def _bring_back(self) -> list[Wire]:
        gone = [id_ for id_ in [*self.inputs, *self.numbers, *self.texts] if id_ not in self.book]
        return [self._usual(id_) for id_ in gone if self.rng.random() < 0.7]

    def _derive_again(self) -> list[Wire]:
        return [self._usual(id_) for id_ in self._some(self._derived())]

    def _same_again(self) -> list[Wire]:
        return [self.book[id_] for id_ in self._some(self._derived()) if id_ in self.book]

    def _set_over_derived(self) -> list[Wire]:
        return [{"op": "set", "id": id_, "value": self._plain()} for id_ in self._some(self._derived(), 8)]

    def _derive_over_input(self) -> list[Wire]:
        pairs = zip(self._some(self.inputs[1:], 3), self.rng.sample(self.inputs, 3), strict=False)
        return [_derive(id_, "sum", {"of": [other]}) for id_, other in pairs if id_ != other]

    def _member(self) -> list[Wire]:
        """Create or remove a value that patterns match."""
        rng = self.rng
        if rng.random() < 0.6:
            self._new += 1
            id_ = f"new/{rng.randrange(3)}/{rng.choice([self._new, rng.randrange(20)])}"
            if rng.random() < 0.3:
                return [_derive(id_, rng.choice(["sum", "max"]), {"of": [rng.choice(self.inputs)]})]
            return [{"op": "unset", "id": id_} if rng.random() < 0.2 else self._set(id_)]
        there = [id_ for id_ in self.book if id_.startswith("new/")]
        return [{"op": "remove", "id": rng.choice(there)}] if there else []

    def _members(self) -> list[Wire]:
        return [one for _ in range(self.rng.randint(1, 12)) for one in self._member()]

    def _loop(self) -> list[Wire]:
        """Create a cycle of some numbers, and remember the edits that end it."""
        members = self._some(self.numbers, 12) if self.rng.random() < 0.7 else [self.rng.choice(self.numbers)]
        self._loops += [self.book[one] for one in members if one in self.book]
        ring = zip(members, [*members[1:], members[0]], strict=True)
        return [_derive(id_, "sum", {"of": [other, self.rng.choice(self.inputs)]}) for id_, other in ring]

    def _mend_loop(self) -> list[Wire]:
        loops, self._loops = self._loops, []
        return loops if self.rng.random() < 0.7 else loops[:1]

    def _missing(self) -> list[Wire]:
        return [_derive(id_, "sum", {"of": [COMMON, "never/there"]}) for id_ in self._some(self.numbers[-20:], 2)]

    def _many(self) -> list[Wire]:
        """Define a third of all values again, or set a third of all inputs."""
        ids = self.rng.choice([self.numbers, self.inputs[1:]])
        at = self.rng.randrange(3)
        return [self._usual(id_) for id_ in ids[at::3]]


def _derive(id_: str, function: str, inputs: dict[str, Any], params: dict[str, Any] | None = None) -> Wire:
    return {"op": "derive", "id": id_, "function": function, "inputs": inputs, "params": params or {}}
