"""Parses and analyses formulas in the Common Expression Language (CEL). `rebaser.dvu.cel` evaluates them.

This package is used by the evaluator, and by `rebaser_core.definitions` to check requests. The module `formulas` needs
the CEL library, which clients do not install, so this file does not import it.
"""

from typing import Final

INVALID_FORMULA: Final = "invalid_formula"  # the error code of a request that contains an invalid formula
