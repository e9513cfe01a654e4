"""Random edits of few values, so that they hit each other: for tests in which several writers meet."""

import random

from rebaser_client import Derive, Remove, Set, Unset
from rebaser_core.updates import Update
from rebaser_core.values import Json

IDS = [f"v{number:02}" for number in range(40)]
HAND = 12  # the first ids are mostly set by hand, the others derived from ids before them: some order in the chaos
FUNCTIONS = ["sum", "sum", "max", "count", "mean", "coalesce", "product", "cel", "cel", "nobody-provides-this"]
VALUES: list[Json] = [0, 1, 1.0, 2.5, -3, 2**62, 1e308, True, None, "x", [1, 2], {"a": 1}]
EDITORS = 3
LOOPS = [f"loop{editor}/a" for editor in range(EDITORS)]


class Edits:
    """Random edits of few ids, so that they hit each other: each kind over each other kind."""

    def __init__(self, seed: int, editor: int) -> None:
        self.random = random.Random(seed)
        self._loop = [f"loop{editor}/a", f"loop{editor}/b"]  # edited by nobody else, used by all

    def trouble(self) -> list[Update]:
        """A cycle, what depends on it, and what lacks an input; left to chance, a run may have none of them."""
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
            case "derive":  # from anything: cycles, and inputs that do not exist
                return self.derive(at, [*IDS, *LOOPS, "never-there"])
            case "remove":
                return Remove(IDS[at])
            case "unset":
                return Unset(IDS[at])
            case _:  # brings removed ids back, mends cycles
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
