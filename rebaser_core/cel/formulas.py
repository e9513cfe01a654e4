"""Parses formulas in the Common Expression Language (CEL), checks them, and finds the names that they use.

Invariant: no formula is evaluated here, and the check of a text gives every caller the same result. Importing this
module needs `cel-expr-python`, which a server installs and a client does not.
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
MAX_ITERATIONS = 10_000  # of all macros in one evaluation together; the library enforces this limit
CACHED = 4096  # parsed formulas that stay in memory

NO_FORMULA = "the parameter expr must be the text of a formula"
NAME_RULE = "a name has letters, digits and _, begins with no digit, and is no reserved word"
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
    """A valid formula: its syntax, and its syntax tree as the library serializes it."""

    syntax: cel_syntax.Syntax
    tree: bytes
    _checked: dict[tuple[str, ...], str] = field(default_factory=dict)  # by input names: the problem with them

    def wrong_names(self, names: tuple[str, ...]) -> str:
        """Return the reason why the formula cannot be evaluated with inputs called `names`; empty if there is none."""
        known = self._checked.get(names)
        if known is not None:
            return known
        problem = ""
        bad = next((name for name in names if not is_name(name)), None)
        missing = next((name for name in self.syntax.names if name not in names), None)
        if bad is not None:
            problem = f"input name {_quote(bad)} cannot be used in a formula: {NAME_RULE}"
        elif missing is not None:
            problem = f"the formula names {_quote(missing)}, which is not an input"
        if len(self._checked) < 64:
            self._checked[names] = problem
        return problem


@lru_cache(CACHED)
def read(expression: str) -> ParsedFormula | str:
    """Parse a formula. If it is invalid, return the reason as text. Both results are cached."""
    if len(expression) > MAX_LENGTH:
        return f"the formula is longer than {MAX_LENGTH} characters"
    try:
        expression.encode()
    except UnicodeEncodeError:
        return "the formula holds a lone surrogate, which is not Unicode text"
    try:
        tree = _ENVIRONMENT.compile(expression, disable_check=True).serialize()
    except RuntimeError as error:
        return reason(str(error))
    syntax = cel_syntax.read(tree)
    if syntax.messages:
        return "a formula cannot build protocol buffer messages"
    if not syntax.times:
        return "the separator of join must be a string literal in the formula"
    return ParsedFormula(syntax, tree)


def problem(expression: object, names: tuple[str, ...]) -> str:
    """Return the reason why a formula with inputs called `names` fails for all values of these inputs; empty if it can
    succeed."""
    if not isinstance(expression, str):
        return NO_FORMULA
    formula = read(expression)
    return formula if isinstance(formula, str) else formula.wrong_names(names)


def names_in(expression: str) -> list[str]:
    """Return the free names of a formula in order of appearance; raises `UnprocessableError` if it is invalid."""
    formula = read(expression)
    if isinstance(formula, str):
        raise UnprocessableError(formula, code=INVALID_FORMULA)
    return list(formula.syntax.names)


def is_name(text: str) -> bool:
    """Return whether `text` can be used as a name in a formula."""
    return _NAME.fullmatch(text) is not None and _RESERVED.fullmatch(text) is None


def reason(text: str) -> str:
    """Return an error message of the library without its status words and source excerpts."""
    if "recursion" in text:
        return "the formula is nested deeper than 32 levels (each operator of a chain adds a level; use sum)"
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
