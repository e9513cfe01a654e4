"""Formulas as they are typed: any id in backticks, names that `--input` explains.

Invariant: what stands in text constants and comments of a formula is left alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rebaser.cli.errors import usage_error
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Input, Match

FreeNames = Callable[[str], Sequence[str]]
NamedInputs = Mapping[str, Input | tuple[Input, ...]]

# In this order: comments, raw text, text, a quoted field (`a.`b-c``, which is CEL's own), an id.
_QUOTED_ID = re.compile(
    r"""//[^\n]*
    | \b[bB]?[rR] (?: '''.*?''' | \"{3}.*?\"{3} | '[^'\n]*' | "[^"\n]*" )
    | '''(?:\\.|.)*?''' | \"{3}(?:\\.|.)*?\"{3} | '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*"
    | \.\s*`[^`]*`
    | `([^`]*)`""",
    re.DOTALL | re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NO_WORD = re.compile(r"\W+", re.ASCII)


def parse_named_inputs(texts: Sequence[str]) -> NamedInputs:
    """What `--input NAME=ID` says, by name; a name that is given more than once stands for a list."""
    found: dict[str, list[Input]] = {}
    for text in texts:
        name, equals, id_ = text.partition("=")
        if not equals or not id_:
            raise usage_error(f"{text!r} names no value; write NAME=ID, as in --input p=cart/1/price", "--input")
        if _WORD.fullmatch(name) is None:
            raise usage_error(f"{name!r} is no name that a formula can use: letters, digits and _ only", "--input")
        found.setdefault(name, []).append(_input(id_))
    return {name: ids[0] if len(ids) == 1 else tuple(ids) for name, ids in found.items()}


@dataclass(frozen=True, slots=True)
class TypedFormula:
    """`expression` as CEL reads it, with the inputs that were in backticks by the names that they have there."""

    expression: str
    quoted: Mapping[str, Input]

    @classmethod
    def read(cls, text: str, given: NamedInputs) -> "TypedFormula":
        """`text` with a name for each id in backticks that nothing else in it has."""
        ids = list(dict.fromkeys(found[1] for found in _QUOTED_ID.finditer(text) if found[1] is not None))
        taken = {*_WORD.findall(_QUOTED_ID.sub(_blank, text)), *given}
        names: dict[str, str] = {}
        for id_ in ids:
            stem = _NO_WORD.sub("_", id_).strip("_") or "input"
            stem = stem if "_" in stem else f"{stem}_value"  # no word that the language has has an underscore
            name = stem = stem if _WORD.match(stem) else f"_{stem}"
            number = 2
            while name in taken:
                name, number = f"{stem}_{number}", number + 1
            taken.add(name)
            names[id_] = name
        expression = _QUOTED_ID.sub(lambda one: one[0] if one[1] is None else names[one[1]], text)
        return cls(expression, {name: _input(id_) for id_, name in names.items()})

    def derive(self, id_: str, free_names: FreeNames, given: NamedInputs) -> Derive:
        """The update; what is neither in backticks nor given is the id of a value."""
        try:
            names = free_names(self.expression)
        except UnprocessableError as error:
            read = f", read as {self.expression!r}" if self.quoted else ""
            raise usage_error(f"formula of {id_!r}{read}: {error.message}", "--derive") from None
        known = {**given, **self.quoted}
        return Derive(id_, "cel", {name: known.get(name, name) for name in names}, {"expr": self.expression})


def _blank(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else " "


def _input(id_: str) -> Input:
    return Match(id_) if "*" in id_ else id_
