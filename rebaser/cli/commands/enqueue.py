"""`rebaser enqueue`: the options, and what they mean together."""

from functools import partial
from typing import Annotated

import typer

from rebaser.cli import console
from rebaser.cli.errors import usage_error
from rebaser.cli.options import DEFAULT_NATS, ChangeSet, Json, Nats, Prefix, Workspace, checked_key
from rebaser.cli.sending.sender import EditSender, WaitUntil
from rebaser.cli.sending.source import open_source
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token


def enqueue(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="ID=JSON", help="Give ID a value.", allow_from_autoenv=False),
    ] = None,
    derives: Annotated[
        list[str] | None,
        typer.Option(
            "--derive",
            metavar="ID=EXPR",
            help="Compute ID by a formula; its names are value ids, any other id or pattern goes in backticks.",
            allow_from_autoenv=False,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=ID",
            help="What NAME is in formulas of --derive; with a * in it, a pattern; more than once, a list.",
            allow_from_autoenv=False,
        ),
    ] = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="ID", help="Take ID's value or formula away.", allow_from_autoenv=False),
    ] = None,
    removes: Annotated[
        list[str] | None, typer.Option("--remove", metavar="ID", help="Remove ID.", allow_from_autoenv=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", "-f", metavar="F|-", help="JSON Lines of updates, or FILE.csv with columns id,value; - is stdin."
        ),
    ] = None,
    wait: Annotated[
        WaitUntil, typer.Option(help="End when it is sent, applied, or when derived values are true again.")
    ] = WaitUntil.APPLIED,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for each answer; for a file, also for room in a full queue.")
    ] = 60.0,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Updates of a file in one request, at most.")] = 5000,
    content_type: Annotated[
        str, typer.Option(metavar="cbor|json", help="What the request is written in, and its answer.")
    ] = "cbor",
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Send formulas of a file that cannot be read, too; their values are errors."),
    ] = False,
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id",
            metavar="ID",
            help="Of the one request of the options; sent again with the same one, it is applied once.",
            allow_from_autoenv=False,
        ),
    ] = None,
    fail_on_error: Annotated[
        bool,
        typer.Option(
            "--fail-on-error", help="With --wait derived: exit code 1 if any value of the change set is an error."
        ),
    ] = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Edit a change set.

    What the options of one call ask for is one request: all of it is applied, or none. A file follows, in order, in
    batches that are each applied whole. A regular file is checked to its end before anything is sent. With --wait
    derived it says how the values of the change set stand then, and the first reasons of those that are errors.
    """
    from rebaser.cli.runner import run_async
    from rebaser.cli.sending.edits import parse_edits

    key = checked_key(workspace, change_set)
    edits = parse_edits(sets or (), derives or (), unsets or (), removes or (), _names_in, inputs=inputs or ())
    if not edits and file is None:
        raise usage_error("nothing to do: give --set, --derive, --unset, --remove or --file")
    if fail_on_error and wait is not WaitUntil.DERIVED:
        raise usage_error("goes with --wait derived: before that nobody knows", "--fail-on-error")
    if request_id is not None:
        _check_request_id(request_id, file)
    with open_source(file, checked=not unchecked) as source:
        if source is not None:
            source.check()
        sender = EditSender(
            key,
            wait,
            timeout,
            batch,
            content_type=_content_type(content_type),
            request_id=request_id,
            fail_on_error=fail_on_error,
        )
        code = run_async(partial(sender.run, nats, prefix, edits, source))
    if code:
        if told := sender.interrupted_line():
            console.note(told)
        return code
    sender.tell(json=json)
    return code


def _content_type(text: str) -> str:
    from rebaser_core.encoding.payload import ContentType

    try:
        return ContentType.of(text if "/" in text else f"application/{text}").value
    except UnprocessableError as error:
        raise usage_error(f"{error.message}: cbor or json") from None


def _check_request_id(request_id: str, file: str | None) -> None:
    if file is not None:
        raise usage_error("is of one request, and a file may be sent in several: leave one of them out", "--request-id")
    try:
        check_token(request_id, "request id")
    except UnprocessableError as error:
        raise usage_error(error.message, "--request-id") from None


def _names_in(expression: str) -> list[str]:
    from rebaser_core.cel.formulas import names_in

    return names_in(expression)
