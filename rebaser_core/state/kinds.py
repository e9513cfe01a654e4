"""The numbers that stand for what a row is, and for what kind of value it has."""

from typing import Final

from rebaser_core.values import State

# What a row is.
ABSENT, OK, STALE, ERROR, UNSET = range(5)
STATES: Final = (State.UNSET, State.OK, State.STALE, State.ERROR, State.UNSET)
STATE_CODES: Final = {State.OK: OK, State.STALE: STALE, State.ERROR: ERROR, State.UNSET: UNSET}

# What its value is: the kind. A number stands beside it (an integer, or the bits of a double), OTHER elsewhere.
NULL, FALSE, TRUE, INT, FLOAT, OTHER = range(6)

UNDEFINED: Final = -1  # the template of a row without a definition
