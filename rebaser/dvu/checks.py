"""What can be said against a definition before anybody computes it, for those who send it.

Servers take it all the same, and make its value an error that says why: another release, which knows more, may be able
to compute it, and requests that wait must not depend on who reads them. So these are checks of the sender.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from rebaser.dvu import cel, faults
from rebaser.dvu.functions.registry import builtins
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Update

_BUILTINS = builtins()


def check(update: Update) -> None:
    """Raises `UnprocessableError` for a definition by a built-in function that can only fail, or says what none reads.

    A function that is not built in may be a plug-in of the servers.
    """
    function = _BUILTINS.get(update.function) if isinstance(update, Derive) else None
    if function is None or not isinstance(update, Derive):
        return
    for what, given, known in (
        ("input", update.inputs, function.inputs),
        ("parameter", update.params, function.params),
    ):
        other = next((name for name in given if name not in known), None) if known is not None else None
        if other is not None and known is not None:
            raise _refused(update, f"{function.name} has no {what} {faults.quote(other)}{_meant(other, known)}")
    if function.name == "cel":
        wrong = cel.problem(update.params.get("expr"), tuple(update.inputs))
        if wrong:
            raise _refused(update, wrong)


def _meant(other: str, known: Iterable[str]) -> str:
    close = get_close_matches(other, known, 1)
    if close:
        return f", did you mean {close[0]}?"
    names = ", ".join(known)
    return f", only {names}" if names else ", nor any other"


def _refused(update: Derive, message: str) -> UnprocessableError:
    return UnprocessableError(f"{faults.quote(update.id)}: {message}", code="invalid_definition")
