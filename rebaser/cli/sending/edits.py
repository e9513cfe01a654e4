"""Parses updates from command-line options: `--set a=1 --derive b='a * 2' --unset c --remove d`.

Invariant: the updates are valid (`rebaser_core.updates`), and no id is edited twice, because the command line does not
preserve the order of options with different names.
"""

import json
import shlex
from collections.abc import Iterator, Sequence

from rebaser.cli.errors import usage_error
from rebaser.cli.sending.formulas import FreeNames, NamedInputs, TypedFormula, parse_named_inputs
from rebaser_core.encoding.envelope import ContentType, loads
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Remove, Set, Unset, Update, parse_update
from rebaser_core.values import Json


def parse_edits(
    sets: Sequence[str],
    derives: Sequence[str],
    unsets: Sequence[str],
    removes: Sequence[str],
    free_names: FreeNames,
    *,
    inputs: Sequence[str] = (),
) -> list[Update]:
    """Return the updates that the options describe. `free_names` returns the names that a formula uses.

    Raise a usage error that says which option is wrong and shows its correct form.
    """
    from rebaser.client_settings import load_client_settings

    limits = load_client_settings().limits
    updates: list[Update] = []
    seen: set[str] = set()
    for option, update in _each(sets, _derives(derives, inputs, free_names), unsets, removes):
        if update.id in seen:
            raise usage_error(f"{update.id!r} is edited twice; put edits whose order matters into a --file", option)
        seen.add(update.id)
        try:
            updates.append(parse_update(update.to_wire(), limits))
        except UnprocessableError as error:
            raise usage_error(error.message, option) from None
    return updates


def _each(
    sets: Sequence[str], derives: Sequence[Derive], unsets: Sequence[str], removes: Sequence[str]
) -> Iterator[tuple[str, Update]]:
    for text in sets:
        yield "--set", _set(text)
    for derive in derives:
        yield "--derive", derive
    for text in unsets:
        yield "--unset", Unset(text)
    for text in removes:
        yield "--remove", Remove(text)


def _set(text: str) -> Set:
    id_, equals, raw = text.partition("=")
    if not equals:
        raise usage_error(f"{text!r} has no '='; write ID=JSON, for example --set price=9.5", "--set")
    return Set(id_, parse_value(raw, f"--set {shlex.quote(id_)}="))


def parse_value(raw: str, option: str) -> Json:
    """Return the value of the JSON text `raw`.

    If `raw` is not valid JSON, raise a usage error that says how to write text. `option` is the part of the command
    line before `raw`, which the message repeats.
    """
    try:
        value = loads(ContentType.JSON, raw.encode())
    except (UnprocessableError, UnicodeEncodeError) as error:
        suggestion = f"{option}{shlex.quote(json.dumps(raw, ensure_ascii=False))}"
        message = f"{raw!r}: {error}; if it is text, quote it: {suggestion}"
        raise usage_error(message, "--set") from None
    return value  # type: ignore[return-value]  # `parse_update` and the client check it


def _derives(texts: Sequence[str], inputs: Sequence[str], free_names: FreeNames) -> list[Derive]:
    named_inputs = parse_named_inputs(inputs)
    derives = [_derive(text, free_names, named_inputs) for text in texts]
    used = {name for derive in derives for name in derive.inputs}
    for name in named_inputs:
        if name not in used:
            raise usage_error(f"no formula of --derive uses {name!r}; use it, or leave out this input", "--input")
    return derives


def _derive(text: str, free_names: FreeNames, named_inputs: NamedInputs) -> Derive:
    id_, equals, expression = text.partition("=")
    expression = expression.strip()
    if not equals or not expression or expression.startswith("="):
        raise usage_error(
            f"{text!r} has no formula; write ID=EXPR, for example --derive total='price * qty'", "--derive"
        )
    return TypedFormula.read(expression, named_inputs).derive(id_, free_names, named_inputs)
