"""Defines the options that several commands share, so that they have the same name, help and behaviour everywhere."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rebaser.cli.completion import complete_branch, complete_change_set, complete_workspace
from rebaser.cli.errors import usage_error
from rebaser_client.log.positions import At, parse_position
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey

Workspace = Annotated[
    str,
    typer.Argument(
        metavar="WS", help="Workspace: 1 to 64 characters of A-Z a-z 0-9 _ -", autocompletion=complete_workspace
    ),
]
Position = Annotated[
    str,
    typer.Argument(
        metavar="CS[@POSITION]",
        help="Change set, now or at a position: CS@1234 (a log sequence), CS@2h (an age) or CS@2026-01-31T12:00Z.",
        autocompletion=complete_change_set,
    ),
]
ChangeSet = Annotated[
    str,
    typer.Argument(
        metavar="CS", help="Change set: 1 to 64 characters of A-Z a-z 0-9 _ -", autocompletion=complete_change_set
    ),
]
Branch = Annotated[
    str,
    typer.Argument(metavar="BRANCH", help="The branch: a change set with a target.", autocompletion=complete_branch),
]
Nats = Annotated[str, typer.Option("--nats", metavar="URL", envvar="REBASER_NATS_URL", help="URL of the NATS server.")]
Prefix = Annotated[
    str, typer.Option("--prefix", envvar="REBASER_PREFIX", help="Prefix of all stream and subject names.")
]
Author = Annotated[
    str,
    typer.Option(
        "--author", metavar="NAME", envvar="REBASER_AUTHOR", help="Author of the edits, which the log records."
    ),
]
Message = Annotated[
    str,
    typer.Option(
        "--message", "-m", metavar="TEXT", help="Reason for the edits, which the log records.", allow_from_autoenv=False
    ),
]
AnswerTimeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")]
NoPager = Annotated[bool, typer.Option("--no-pager", help="On a terminal, do not show long output in a pager.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_NATS = "nats://127.0.0.1:4222"


def optional_workspace(help_text: str) -> Any:
    """Return the argument WS of a command that also works without it."""
    return typer.Argument(metavar="WS", help=help_text, show_default=False, autocompletion=complete_workspace)


def optional_change_set(help_text: str) -> Any:
    """Return the argument CS of a command that also works without it."""
    return typer.Argument(metavar="CS", help=help_text, show_default=False, autocompletion=complete_change_set)


def _option(name: str, kind: Any, help_text: str, metavar: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{name.replace('_', '-')}", metavar=metavar or None, envvar=f"REBASER_{name.upper()}", help=help_text
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


ACCESS_OPTIONS = [
    _option("nats_creds", Path | None, "NATS credentials file.", "FILE"),
    _option("nats_nkey", Path | None, "File that contains the seed of an nkey.", "FILE"),
    _option("nats_user", str | None, "NATS user name.", "NAME"),
    _option(
        "nats_password",
        str | None,
        "Password of the NATS user. Prefer the environment variable: other users of this machine can see options.",
        "WORD",
    ),
    _option("nats_password_file", Path | None, "File that contains the password of the NATS user.", "FILE"),
    _option(
        "nats_token",
        str | None,
        "NATS token. Prefer the environment variable: other users of this machine can see options.",
        "WORD",
    ),
    _option("nats_token_file", Path | None, "File that contains the NATS token.", "FILE"),
    _option(
        "nats_tls_ca",
        Path | None,
        "CA certificates that may sign the NATS server's certificate. Default: the system's certificates.",
        "FILE",
    ),
    _option("nats_tls_cert", Path | None, "Client certificate for NATS.", "FILE"),
    _option(
        "nats_tls_key", Path | None, "Key of the client certificate, unless the certificate file contains it.", "FILE"
    ),
    _option(
        "nats_tls_hostname",
        str | None,
        "Host name in the NATS server's certificate, if it differs from the address.",
        "NAME",
    ),
    _option("nats_tls_first", bool | None, "Start TLS before NATS says anything (handshake_first).", ""),
    _option(
        "nats_domain", str | None, "JetStream domain, if this account imports JetStream from another account.", "NAME"
    ),
]
ACCESS_VALUES: ContextVar[dict[str, object]] = ContextVar("ACCESS_VALUES", default={})  # noqa: B039 - never mutated
"""The values of `ACCESS_OPTIONS` for the running command, by setting name."""


def with_access(command: Callable[..., int]) -> Callable[..., int]:
    """Return `command` with `ACCESS_OPTIONS` added: the credentials for NATS, and the certificates to trust."""
    names = [option.name for option in ACCESS_OPTIONS]

    @wraps(command)
    def run(**arguments: Any) -> int:
        token = ACCESS_VALUES.set({name: arguments.pop(name) for name in names})
        try:
            return command(**arguments)
        finally:
            ACCESS_VALUES.reset(token)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    ]
    signature = inspect.signature(command)
    run.__signature__ = signature.replace(parameters=[*own, *ACCESS_OPTIONS])  # type: ignore[attr-defined]
    run.__annotations__ = hints | {option.name: option.annotation for option in ACCESS_OPTIONS}
    return run


def examples(*lines: str) -> str:
    """Return a text that shows `lines` as the examples at the end of a command's help, without wrapping them."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def checked_key(workspace: str, change_set: str, *, reserved: bool = False) -> ChangeSetKey:
    """Return the key of the change set that the arguments specify. Raise a usage error if a name is invalid.

    If `reserved` is true, the reserved workspace is also valid.
    """
    try:
        return (ChangeSetKey.of_any if reserved else ChangeSetKey.of)(workspace, change_set)
    except UnprocessableError as error:
        raise usage_error(error.message) from None


def checked_position(workspace: str, position: str) -> tuple[ChangeSetKey, At | None]:
    """Return the change set and the position that the arguments specify. Raise a usage error if either is invalid."""
    try:
        parsed = parse_position(position, datetime.now(UTC))
        return ChangeSetKey.of(workspace, parsed.change_set), parsed.at
    except UnprocessableError as error:
        raise usage_error(error.message) from None
