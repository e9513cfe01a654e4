"""Parses formulas in the Common Expression Language (CEL), checks them, and finds the names that they use.

Invariant: no formula is evaluated here, and checking the same text always gives the same result. Importing this module
needs `cel-expr-python`, which servers install and clients do not.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from rebaser_core.cel import INVALID_FORMULA
from rebaser_core.cel import syntax as cel_syntax
from rebaser_core.errors import UnprocessableError

MAX_LENGTH = 8192  # maximum number of characters in a formula; the parser itself refuses more than 32 nested levels
MAX_ITERATIONS = 10_000  # maximum for all macros in one evaluation together; the CEL library enforces the limit
CACHED = 4096  # maximum number of parsed formulas in memory

NO_FORMULA = "the parameter 'expr' must be the text of a formula"
NAME_RULE = "a name consists of letters, digits and _, does not begin with a digit, and is not a reserved word"
_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_RESERVED = re.compile(  # from the section "Syntax" of the CEL language definition (langdef.md in cel-spec)
    "as|break|const|continue|else|false|for|function|if|import|in|let|loop|namespace|null|package|return|true|var|void|"
    "while"
)
_WHERE = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_SHOWN_NAME = 80


@dataclass(frozen=True, slots=True)
class ParsedFormula:
    """A valid formula: the analysis of its syntax, and its syntax tree in the form in which the CEL library serializes
    it."""

    syntax: cel_syntax.Syntax
    tree: bytes
    _checked: dict[tuple[str, ...], str] = field(default_factory=dict)  # the cached results of `wrong_names`

    def wrong_names(self, names: tuple[str, ...]) -> str:
        """Return the reason why the formula cannot be evaluated with inputs called `names`, or an empty text if it
        can."""
        known = self._checked.get(names)
        if known is not None:
            return known
        problem = ""
        bad = next((name for name in names if not is_name(name)), None)
        missing = next((name for name in self.syntax.names if name not in names), None)
        if bad is not None:
            problem = f"input name {_quote(bad)} cannot be used in a formula: {NAME_RULE}"
        elif missing is not None:
            problem = f"the formula names {_quote(missing)}, which is not an input: add this input or correct the name"
        if len(self._checked) < 64:
            self._checked[names] = problem
        return problem


@lru_cache(CACHED)
def read(expression: str) -> ParsedFormula | str:
    """Parse a formula. If the formula is invalid, return the reason as text. The result is cached in both cases."""
    if len(expression) > MAX_LENGTH:
        return f"the formula is longer than {MAX_LENGTH} characters: divide it among several derived values"
    try:
        expression.encode()
    except UnicodeEncodeError:
        return "the formula contains a lone surrogate, which is not valid Unicode text: remove it"
    try:
        tree = _ENVIRONMENT.compile(expression, disable_check=True).serialize()
    except RuntimeError as error:
        return reason(str(error))
    syntax = cel_syntax.read(tree)
    if syntax.messages:
        return "a formula cannot build protocol buffer messages: build a map, such as {'price': 1}"
    if not syntax.times:
        return "the separator of join must be a string literal, such as ',': write it in the formula"
    return ParsedFormula(syntax, tree)


def problem(expression: object, names: tuple[str, ...]) -> str:
    """Return the reason why a formula with inputs called `names` fails for all values of these inputs, or an empty text
    if the formula can succeed."""
    if not isinstance(expression, str):
        return NO_FORMULA
    formula = read(expression)
    return formula if isinstance(formula, str) else formula.wrong_names(names)


def names_in(expression: str) -> list[str]:
    """Return the free names of a formula, in order of appearance. Raise `UnprocessableError` if the formula is
    invalid."""
    formula = read(expression)
    if isinstance(formula, str):
        raise UnprocessableError(formula, code=INVALID_FORMULA)
    return list(formula.syntax.names)


def is_name(text: str) -> bool:
    """Return whether `text` can be used as a name in a formula."""
    return _NAME.fullmatch(text) is not None and _RESERVED.fullmatch(text) is None


def reason(text: str) -> str:
    """Turn `text`, an error message from the CEL library, into a message for users, without status words and excerpts
    of the formula."""
    if "recursion" in text:
        return "the formula is nested deeper than 32 levels: each operator of a chain adds a level, so use sum instead"
    if "Iteration budget" in text:
        return f"the formula needs more than {MAX_ITERATIONS} iterations: apply its macros to shorter lists"
    where = _WHERE.search(text)
    if where is not None:
        line, column, message = where.groups()
        return f"line {line}, column {column}: {message[:200]}"
    return _STATUS.sub("", text)[:200]


def _quote(name: str) -> str:
    return f"'{name}'" if len(name) <= _SHOWN_NAME else f"'{name[: _SHOWN_NAME - 1]}…'"


_ENVIRONMENT = cel.NewEnv(extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()])
