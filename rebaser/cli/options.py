"""Options that several commands share, so that they read and behave the same everywhere."""

from typing import Annotated

import typer

from rebaser.cli.failures import usage
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


def examples(*lines: str) -> str:
    """The end of a command's help: what to type, never wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def checked_key(workspace: str, change_set: str) -> ChangeSetKey:
    """The change set that the arguments name; a usage error for names that cannot be one."""
    try:
        return ChangeSetKey.of(workspace, change_set)
    except UnprocessableError as error:
        raise usage(error.message) from None
