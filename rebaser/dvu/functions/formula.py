"""Defines the function `cel`, which evaluates a formula over its inputs.

Invariant: `rebaser.dvu.cel.evaluate` decides what a formula may do. This module only makes it available as a function.
"""

from rebaser.dvu.cel import evaluate
from rebaser.dvu.functions.base import FunctionError, Inputs, Params, builtin
from rebaser_core.values import Json


@builtin("cel", "names")
def cel_(inputs: Inputs, params: Params) -> Json:
    """Return the value of the formula in the param `expr` (Common Expression Language), which uses inputs by name.

    Integers and doubles may be mixed. `/` gives an integer if there is no remainder: 6 / 2 is 3, 7 / 2 is 3.5.
    """
    try:
        return evaluate.evaluate(inputs, params.get("expr"))
    except evaluate.FormulaError as error:
        raise FunctionError(str(error), error.code) from None


ALL = (cel_,)
