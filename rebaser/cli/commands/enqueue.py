"""`rebaser enqueue`: edits a change set with the edits in options or in a file."""

from functools import partial
from typing import Annotated

import typer

from rebaser.cli.errors import usage_error
from rebaser.cli.options import DEFAULT_NATS, Author, ChangeSet, Json, Message, Nats, Prefix, Workspace, checked_key
from rebaser.cli.output import console
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
        typer.Option("--set", metavar="ID=JSON", help="Set ID to a JSON value.", allow_from_autoenv=False),
    ] = None,
    derives: Annotated[
        list[str] | None,
        typer.Option(
            "--derive",
            metavar="ID=EXPR",
            help="Derive ID by a CEL formula. Names in it are ids of values; put other ids and patterns in backticks.",
            allow_from_autoenv=False,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=ID",
            help="Name ID for the formulas of --derive. ID may be a pattern with *. Repeat NAME to make it a list.",
            allow_from_autoenv=False,
        ),
    ] = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="ID", help="Delete the value or formula of ID, but keep ID.", allow_from_autoenv=False
        ),
    ] = None,
    removes: Annotated[
        list[str] | None, typer.Option("--remove", metavar="ID", help="Delete ID.", allow_from_autoenv=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="F|-",
            help="File with one JSON update per line, or *.csv with the columns id,value. - is stdin.",
        ),
    ] = None,
    wait: Annotated[
        WaitUntil,
        typer.Option(
            help="End when the edits are sent, when they are applied, or when all derived values are up to date."
        ),
    ] = WaitUntil.APPLIED,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds to wait for each answer, and with --file also for room in a full queue."),
    ] = 60.0,
    batch: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum number of updates of a file in one request.")
    ] = 10_000,
    content_type: Annotated[str, typer.Option(metavar="cbor|json", help="Encoding of requests and answers.")] = "cbor",
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked", help="With --file: also send formulas with syntax errors; their values become errors."
        ),
    ] = False,
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id",
            metavar="ID",
            help="Id of the request. Requests with the same id are applied once. Not with --file.",
            allow_from_autoenv=False,
        ),
    ] = None,
    fail_on_error: Annotated[
        bool,
        typer.Option(
            "--fail-on-error", help="With --wait derived: exit with 1 if any value of the change set is in error."
        ),
    ] = False,
    author: Author = "",
    message: Message = "",
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Edit a change set.

    The edits of all options form one request: either all of them are applied, or none. The edits in a file follow, in
    order and in batches, each of which is applied completely or not at all. A regular file is checked to its end before
    anything is sent. With --wait derived, the command ends by printing the number of values in each state and the first
    errors.
    """
    from rebaser.cli.runner import run_async
    from rebaser.cli.sending.edits import parse_edits

    key = checked_key(workspace, change_set)
    edits = parse_edits(sets or (), derives or (), unsets or (), removes or (), _names_in, inputs=inputs or ())
    if not edits and file is None:
        raise usage_error("no edits: give --set, --derive, --unset, --remove or --file")
    if fail_on_error and wait is not WaitUntil.DERIVED:
        raise usage_error("requires --wait derived, because errors are not known before that", "--fail-on-error")
    if request_id is not None:
        _check_request_id(request_id, file)
    with open_source(file, checked=not unchecked) as source:
        if source is not None:
            source.check(batch)
        sender = EditSender(
            key,
            wait,
            timeout,
            batch,
            content_type=_content_type(content_type),
            request_id=request_id,
            fail_on_error=fail_on_error,
            author=author,
            message=message,
        )
        code = run_async(partial(sender.run, nats, prefix, edits, source))
    if code:
        if line := sender.interrupted_line():
            console.note(line)
        return code
    sender.show_result(json=json)
    return code


def _content_type(text: str) -> str:
    from rebaser_core.encoding.payload import ContentType

    try:
        return ContentType.of(text if "/" in text else f"application/{text}").value
    except UnprocessableError as error:
        raise usage_error(f"{error.message}; use cbor or json") from None


def _check_request_id(request_id: str, file: str | None) -> None:
    if file is not None:
        raise usage_error("cannot be used with --file, because a file may be sent as several requests", "--request-id")
    try:
        check_token(request_id, "request id")
    except UnprocessableError as error:
        raise usage_error(error.message, "--request-id") from None


def _names_in(expression: str) -> list[str]:
    from rebaser_core.cel.formulas import names_in

    return names_in(expression)
