"""Parses the formulas of `--derive`, with their ids in backticks and the names that `--input` defines.

Invariant: text constants and comments in a formula stay unchanged.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rebaser.cli.errors import usage_error
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Input, Match

FreeNames = Callable[[str], Sequence[str]]
NamedInputs = Mapping[str, Input | tuple[Input, ...]]

# The alternatives are, in order: a comment, raw text, text, a quoted field (`a.`b-c``, which is CEL syntax), and an id
# in backticks.
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
    """Return the inputs that `--input NAME=ID` defines, by name. A repeated name stands for a list of ids."""
    inputs: dict[str, list[Input]] = {}
    for text in texts:
        name, equals, id_ = text.partition("=")
        if not equals or not id_:
            raise usage_error(
                f"{text!r} has no name or no id; write NAME=ID, for example --input p=cart/1/price", "--input"
            )
        if _WORD.fullmatch(name) is None:
            raise usage_error(
                f"{name!r} is not a name for a formula: use letters, digits and _, and do not begin with a digit",
                "--input",
            )
        inputs.setdefault(name, []).append(_input(id_))
    return {name: ids[0] if len(ids) == 1 else tuple(ids) for name, ids in inputs.items()}


@dataclass(frozen=True, slots=True)
class TypedFormula:
    """A formula of `--derive`. `expression` is the CEL expression, with a name in place of each id in backticks.

    `quoted` are the ids (or patterns) in backticks, by name.
    """

    expression: str
    quoted: Mapping[str, Input]

    @classmethod
    def read(cls, text: str, named_inputs: NamedInputs) -> "TypedFormula":
        """Parse `text`. Each id in backticks gets a name that does not occur in `text`."""
        ids = list(dict.fromkeys(match[1] for match in _QUOTED_ID.finditer(text) if match[1] is not None))
        taken = {*_WORD.findall(_QUOTED_ID.sub(_blank, text)), *named_inputs}
        names: dict[str, str] = {}
        for id_ in ids:
            stem = _NO_WORD.sub("_", id_).strip("_") or "input"
            stem = stem if "_" in stem else f"{stem}_value"  # CEL keywords have no underscore
            name = stem = stem if _WORD.match(stem) else f"_{stem}"
            number = 2
            while name in taken:
                name, number = f"{stem}_{number}", number + 1
            taken.add(name)
            names[id_] = name
        expression = _QUOTED_ID.sub(lambda match: match[0] if match[1] is None else names[match[1]], text)
        return cls(expression, {name: _input(id_) for id_, name in names.items()})

    def derive(self, id_: str, free_names: FreeNames, named_inputs: NamedInputs) -> Derive:
        """Return the update that derives `id_`. A name that is neither in `quoted` nor in `named_inputs` is itself an
        id."""
        try:
            names = free_names(self.expression)
        except UnprocessableError as error:
            rewritten = f" (read as {self.expression!r})" if self.quoted else ""
            raise usage_error(f"formula of {id_!r}{rewritten}: {error.message}", "--derive") from None
        known = {**named_inputs, **self.quoted}
        return Derive(id_, "cel", {name: known.get(name, name) for name in names}, {"expr": self.expression})


def _blank(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else " "


def _input(id_: str) -> Input:
    return Match(id_) if "*" in id_ else id_
