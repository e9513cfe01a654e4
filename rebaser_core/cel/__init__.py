"""Formulas of the Common Expression Language (CEL): parsed and analysed here, evaluated in `rebaser.dvu.cel`.

For `rebaser_core.definitions`, which checks requests, and for the evaluator. `formulas` needs the CEL library, which
clients do not install; so this package itself imports nothing.
"""

from typing import Final

INVALID_FORMULA: Final = "invalid_formula"  # error code of a request with a formula that is not valid
