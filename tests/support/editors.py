"""Random edits of few values, so that edits of several writers concern the same values."""

import random

from rebaser_client import Derive, Remove, Set, Unset
from rebaser_core.updates import Update
from rebaser_core.values import Json

IDS = [f"v{number:02}" for number in range(40)]
# The first ids are mostly set, and the others are mostly derived from ids before them, so that most edits make sense.
HAND = 12
FUNCTIONS = ["sum", "sum", "max", "count", "mean", "coalesce", "product", "cel", "cel", "nobody-provides-this"]
VALUES: list[Json] = [0, 1, 1.0, 2.5, -3, 2**62, 1e308, True, None, "x", [1, 2], {"a": 1}]
EDITORS = 3
LOOPS = [f"loop{editor}/a" for editor in range(EDITORS)]


class Edits:
    """Random edits of few ids, so that each kind of edit replaces each other kind."""

    def __init__(self, seed: int, editor: int) -> None:
        self.random = random.Random(seed)
        # Ids that only this editor edits, but that all editors use as inputs.
        self._loop = [f"loop{editor}/a", f"loop{editor}/b"]

    def trouble(self) -> list[Update]:
        """Return a cycle, a value that depends on it, and a value with a missing input. Random edits alone may make
        none of these."""
        a, b = self._loop
        return [
            Derive(a, "sum", {"of": [b]}),
            Derive(b, "sum", {"of": [a]}),
            Derive(f"{a}/after", "sum", {"of": [a]}),
            Derive(f"{a}/lacks", "sum", {"of": ["never-there"]}),
        ]

    def mend(self) -> list[Update]:
        return [Set(self._loop[0], self.random.randrange(100))]

    def batch(self) -> list[Update]:
        return [self.one() for _ in range(self.random.randint(1, 4))]

    def one(self) -> Update:
        random = self.random
        at = random.randrange(len(IDS))
        match random.choices(("usual", "set", "derive", "remove", "unset"), (70, 8, 10, 7, 5))[0]:
            case "set":
                return self.set(at)
            case "derive":  # The inputs are any ids, so there are cycles and inputs that do not exist.
                return self.derive(at, [*IDS, *LOOPS, "never-there"])
            case "remove":
                return Remove(IDS[at])
            case "unset":
                return Unset(IDS[at])
            case _:  # Setting a value creates removed ids again, and breaks cycles.
                return self.set(at) if at < HAND else self.derive(at, IDS[:at])

    def set(self, at: int) -> Update:
        return Set(IDS[at], self.random.choice(VALUES))

    def derive(self, at: int, among: list[str]) -> Update:
        inputs = self.random.sample(among, self.random.randint(1, 3))
        function = self.random.choice(FUNCTIONS)
        if function == "cel":
            named = {f"n{number}": id_ for number, id_ in enumerate(inputs)}
            return Derive(IDS[at], "cel", named, {"expr": " + ".join(named)})
        return Derive(IDS[at], function, {"of": inputs})
