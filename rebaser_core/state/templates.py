"""Stores the templates of definitions. A template is a definition without ids, so many values can share it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebaser_core.updates import Derive, Match
from rebaser_core.values import Json, canonical


@dataclass(frozen=True, slots=True)
class DefinitionTemplate:
    """A definition without ids. `inputs` contains the name of each input and the number of ids in its list, or -1 if
    the input is a single id."""

    function: str
    inputs: tuple[tuple[str, int], ...]
    params: Mapping[str, Json]

    @property
    def arity(self) -> int:
        """The number of input ids in a definition with this template."""
        return sum(abs(count) for _, count in self.inputs)


class Templates:
    """A list of the distinct templates of a change set. Templates are never removed.

    `arity` (int32) contains the arity of each template; this array may be longer than the list. `functions` contains
    the names of the functions of all templates.
    """

    def __init__(self) -> None:
        self.arity: NDArray[np.int32] = np.zeros(16, np.int32)
        self.functions: set[str] = set()
        self._all: list[DefinitionTemplate] = []
        self._places: dict[tuple[str, tuple[tuple[str, int], ...], bytes], int] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, place: int) -> DefinitionTemplate:
        return self._all[place]

    def __iter__(self) -> Iterator[DefinitionTemplate]:
        return iter(self._all)

    def place(self, function: str, inputs: tuple[tuple[str, int], ...], params: Mapping[str, Json]) -> int:
        """Return the position of the template with these parts. Add the template if it is new."""
        key = (function, inputs, canonical(dict(params)) if params else b"")
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._all)
            self._all.append(DefinitionTemplate(function, inputs, params))
            self.functions.add(function)
            if place == len(self.arity):
                self.arity = np.resize(self.arity, 2 * place)
            self.arity[place] = self._all[place].arity
        return place

    def split(self, definition: Derive) -> tuple[int, list[str]]:
        """Split a definition into the position of its template and its input ids. A pattern is represented by its
        key."""
        inputs: list[tuple[str, int]] = []
        ids: list[str] = []
        for name, source in definition.inputs.items():
            if isinstance(source, str):
                inputs.append((name, -1))
                ids.append(source)
            elif isinstance(source, Match):
                inputs.append((name, 1))
                ids.append(source.key)
            else:
                inputs.append((name, len(source)))
                ids.extend([item if isinstance(item, str) else item.key for item in source])
        return self.place(definition.function, tuple(inputs), definition.params), ids

    def input_places(
        self, template: NDArray[Any], first_input: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions in `Columns.refs` of the inputs of definitions, given the definitions' `template` and
        `first_input`.

        The first array contains all positions, one definition after another. For each definition, the second array
        contains the index in the first array at which its positions begin, and the third array contains the number of
        its positions.
        """
        counts = self.arity[template].astype(np.int64)
        starts = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(first_input - starts, counts), starts, counts
