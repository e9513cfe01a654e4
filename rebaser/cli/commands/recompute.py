"""`rebaser recompute`: sends a request to compute derived values again even though their inputs have not changed."""

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
        str | None,
        typer.Option(metavar="F", help="Recompute only the values of this function. Default: all derived values."),
    ] = None,
    wait: Annotated[
        WaitUntil,
        typer.Option(
            help="End when the request is sent, when it is applied, or when all derived values are up to date."
        ),
    ] = WaitUntil.APPLIED,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for each answer.")] = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Compute the derived values of a change set again.

    Use this command after the code of a function has changed, because values that are up to date are otherwise not
    computed again. Until they are computed, the values are shown as stale. If a result differs from the previous
    result, the values that depend on it are also computed again.
    """
    from rebaser.cli.runner import run_async

    key = checked_key(workspace, change_set)
    request = Recompute(function)
    try:
        parse_recompute(request.to_wire())
    except UnprocessableError as error:
        raise usage_error(error.message, "--function") from None
    sender = EditSender(key, wait, timeout, recompute=request)
    code = run_async(partial(sender.run, nats, prefix, [], None))
    if code:
        return code
    sender.show_result(json=json)
    return code
