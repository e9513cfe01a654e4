"""What can be said against a definition before anybody computes it, formulas included, for those who send it.

Servers read no formulas when they take requests, which would keep other change sets waiting: of a formula that cannot
be read, the value is an error that says why.
"""

from rebaser.dvu import cel
from rebaser_core.definitions import check_definition
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Update


def check(update: Update) -> None:
    """Raises `UnprocessableError` for a definition by a built-in function that can only fail, or says what none reads.

    A function that is not built in may be a plug-in of the servers.
    """
    check_definition(update)
    if isinstance(update, Derive) and update.function == "cel":
        wrong = cel.problem(update.params.get("expr"), tuple(update.inputs))
        if wrong:
            raise UnprocessableError(f"{update.id[:80]!r}: {wrong}", code="invalid_formula")
