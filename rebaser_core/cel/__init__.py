"""Formulas of the Common Expression Language, read but never evaluated."""

from typing import Final

INVALID_FORMULA: Final = "invalid_formula"  # the code of the error
