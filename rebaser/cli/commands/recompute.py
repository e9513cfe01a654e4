"""`rebaser recompute`: have derived values computed anew, though nothing they rest on changed."""

from functools import partial
from typing import Annotated

import typer

from rebaser.cli.errors import usage_error
from rebaser.cli.options import DEFAULT_NATS, ChangeSet, Json, Nats, Prefix, Workspace, checked_key
from rebaser.cli.sending.sender import EditSender, WaitUntil
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Recompute, parse_recompute


def recompute(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    function: Annotated[
        str | None, typer.Option(metavar="F", help="Only values that this function computes; default: all.")
    ] = None,
    wait: Annotated[
        WaitUntil, typer.Option(help="End when it is sent, applied, or when derived values are true again.")
    ] = WaitUntil.APPLIED,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for each answer.")] = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Compute the derived values of a change set anew.

    For when the code of a function changed: nothing else makes values be computed again that are true. What depends on
    them follows where they turn out different. Until then they show as stale.
    """
    from rebaser.cli.runner import run_async

    key = checked_key(workspace, change_set)
    asked = Recompute(function)
    try:
        parse_recompute(asked.to_wire())
    except UnprocessableError as error:
        raise usage_error(error.message, "--function") from None
    sender = EditSender(key, wait, timeout, recompute=asked)
    code = run_async(partial(sender.run, nats, prefix, [], None))
    if code:
        return code
    sender.tell(json=json)
    return code
