"""Formulas as they are written, in the Common Expression Language: whether one can be read, and what it names.

Invariant: nothing is evaluated here, and what is wrong with a text is the same for whoever asks. Importing this module
needs `cel-expr-python`, which is part of a server's installation and not of a client's.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from rebaser_core.cel import INVALID_FORMULA
from rebaser_core.cel import syntax as cel_syntax
from rebaser_core.errors import UnprocessableError

MAX_LENGTH = 8192  # characters of a formula; the parser itself refuses more than 32 nested levels
MAX_ITERATIONS = 10_000  # of all macros in one evaluation, a bound inside the library
KEPT = 4096  # formulas that stay read

NO_FORMULA = "params need expr, a formula"
_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_RESERVED = re.compile(  # cel-spec, langdef.md, "Syntax"
    "as|break|const|continue|else|false|for|function|if|import|in|let|loop|namespace|null|package|return|true|var|void|"
    "while"
)
_WHERE = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_SHOWN_NAME = 80


@dataclass(frozen=True, slots=True)
class ParsedFormula:
    """What a text says: its syntax, and its tree as the library serializes it."""

    syntax: cel_syntax.Syntax
    tree: bytes
    _checked: dict[tuple[str, ...], str] = field(default_factory=dict)  # input names -> what is wrong with them

    def wrong_names(self, names: tuple[str, ...]) -> str:
        """Why no values of inputs `names` can be put in; empty if they can."""
        known = self._checked.get(names)
        if known is not None:
            return known
        wrong = ""
        bad = next((name for name in names if not is_name(name)), None)
        missing = next((name for name in self.syntax.names if name not in names), None)
        if bad is not None:
            wrong = f"input name {_quote(bad)} cannot be used in a formula: letters, digits and _ only"
        elif missing is not None:
            wrong = f"the formula names {_quote(missing)}, which is not an input"
        if len(self._checked) < 64:
            self._checked[names] = wrong
        return wrong


@lru_cache(KEPT)
def read(expression: str) -> ParsedFormula | str:
    """The formula, or why there is none: both are worth keeping."""
    if len(expression) > MAX_LENGTH:
        return f"the formula is longer than {MAX_LENGTH} characters"
    try:
        expression.encode()
    except UnicodeEncodeError:
        return "the formula is not Unicode text"
    try:
        tree = _ENVIRONMENT.compile(expression, disable_check=True).serialize()
    except RuntimeError as error:
        return reason(str(error))
    syntax = cel_syntax.read(tree)
    if syntax.messages:
        return "a formula cannot build protocol buffer messages"
    if not syntax.times:
        return "the separator of join has to be text that stands in the formula"
    return ParsedFormula(syntax, tree)


def problem(expression: object, names: tuple[str, ...]) -> str:
    """Why a formula with inputs `names` fails whatever they are; empty if it need not."""
    if not isinstance(expression, str):
        return NO_FORMULA
    found = read(expression)
    return found if isinstance(found, str) else found.wrong_names(names)


def names_in(expression: str) -> list[str]:
    """The free names of a formula in order of appearance; raises `UnprocessableError` if it is none."""
    found = read(expression)
    if isinstance(found, str):
        raise UnprocessableError(found, code=INVALID_FORMULA)
    return list(found.syntax.names)


def is_name(text: str) -> bool:
    """Whether a formula can name `text`."""
    return _NAME.fullmatch(text) is not None and _RESERVED.fullmatch(text) is None


def reason(text: str) -> str:
    """What the library says, without its status words and source excerpts."""
    if "recursion" in text:
        return "the formula is nested deeper than 32 levels (a chain of operators counts, use sum)"
    if "Iteration budget" in text:
        return f"the formula needs more than {MAX_ITERATIONS} iterations"
    where = _WHERE.search(text)
    if where is not None:
        line, column, message = where.groups()
        return f"line {line}, column {column}: {message[:200]}"
    return _STATUS.sub("", text)[:200]


def _quote(name: str) -> str:
    return f"'{name}'" if len(name) <= _SHOWN_NAME else f"'{name[: _SHOWN_NAME - 1]}…'"


_ENVIRONMENT = cel.NewEnv(extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()])
