"""Options that several commands share, so that they read and behave the same everywhere."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rebaser.cli.errors import usage_error
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey

Workspace = Annotated[str, typer.Argument(metavar="WS", help="Workspace: 1 to 64 of A-Z a-z 0-9 _ -")]
ChangeSet = Annotated[str, typer.Argument(metavar="CS", help="Change set: 1 to 64 of A-Z a-z 0-9 _ -")]
Nats = Annotated[
    str, typer.Option("--nats", metavar="URL", envvar="REBASER_NATS_URL", help="NATS server of the installation.")
]
Prefix = Annotated[
    str, typer.Option("--prefix", envvar="REBASER_PREFIX", help="In front of every stream and subject name.")
]
Json = Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")]

DEFAULT_NATS = "nats://127.0.0.1:4222"


def _option(name: str, kind: Any, help_text: str, metavar: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{name.replace('_', '-')}", metavar=metavar, envvar=f"REBASER_{name.upper()}", help=help_text
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


ACCESS_OPTIONS = [
    _option("nats_creds", Path | None, "NATS credentials file.", "FILE"),
    _option("nats_nkey", Path | None, "File with the seed of an nkey.", "FILE"),
    _option("nats_user", str | None, "NATS user.", "NAME"),
    _option("nats_password", str | None, "Its password; others see it here, not in the environment.", "WORD"),
    _option("nats_token", str | None, "NATS token; as above.", "WORD"),
    _option("nats_tls_ca", Path | None, "Who may sign NATS' certificate; default: as the system.", "FILE"),
    _option("nats_tls_cert", Path | None, "Certificate to show to NATS.", "FILE"),
    _option("nats_tls_key", Path | None, "Its key, unless it stands with it.", "FILE"),
    _option("nats_tls_hostname", str | None, "Name in NATS' certificate, if not its address.", "NAME"),
]
ACCESS_VALUES: ContextVar[dict[str, object]] = ContextVar("ACCESS_VALUES", default={})  # noqa: B039 - nobody changes it
"""Those of `ACCESS` that the command at work was given."""


def with_access(command: Callable[..., int]) -> Callable[..., int]:
    """`command` with all options of `ACCESS`: who we are to NATS, and whom we trust."""
    names = [option.name for option in ACCESS_OPTIONS]

    @wraps(command)
    def run(**given: Any) -> int:
        token = ACCESS_VALUES.set({name: given.pop(name) for name in names})
        try:
            return command(**given)
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
    """The end of a command's help: what to type, never wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def checked_key(workspace: str, change_set: str) -> ChangeSetKey:
    """The change set that the arguments name; a usage error for names that cannot be one."""
    try:
        return ChangeSetKey.of(workspace, change_set)
    except UnprocessableError as error:
        raise usage_error(error.message) from None
