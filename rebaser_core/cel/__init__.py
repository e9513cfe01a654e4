"""Parses and analyses formulas of the Common Expression Language (CEL). `rebaser.dvu.cel` evaluates them.

`rebaser_core.definitions`, which checks requests, and the evaluator use this package. The module `formulas` needs the
CEL library, which clients do not install, so this file does not import it.
"""

from typing import Final

INVALID_FORMULA: Final = "invalid_formula"  # the error code of a request that contains an invalid formula
