"""What the playground of the console in `rebaser dev` needs: the checker of formulas, and the graph of the demo."""

from typing import TYPE_CHECKING

from typer import BadParameter

if TYPE_CHECKING:
    from rebaser.console.access.options import Playground
    from rebaser_core.updates import Derive, Update


def make_playground() -> "Playground":
    from rebaser.console.access.options import Playground

    return Playground(derive, demo_updates)


def derive(id_: str, formula: str) -> "Derive":
    """Return what `--derive ID=FORMULA` means. Raises `UnprocessableError` for an invalid formula."""
    from rebaser.cli.sending.formulas import TypedFormula
    from rebaser_core.cel.formulas import names_in
    from rebaser_core.errors import UnprocessableError

    try:
        return TypedFormula.read(formula, {}).derive(id_, names_in, {})
    except BadParameter as error:
        raise UnprocessableError(error.message, code="invalid_formula") from None


def demo_updates() -> "list[Update]":
    """Return the updates that create the graph of `rebaser demo`: the installed packages and what they require."""
    from rebaser.cli.demo.environment import read_environment
    from rebaser.cli.demo.model import all_updates

    return all_updates(read_environment())
