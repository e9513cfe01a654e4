"""Turns expected failures of commands into one line on stderr and an exit code.

Invariant: only this module does this. The line says what is wrong and what to do. An unexpected exception is a bug, so
its traceback is shown.
"""

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from rebaser_core.errors import RebaserError
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import RebaserClient, RequestRejected
    from rebaser_core.ids import ChangeSetKey

STREAM_NOT_FOUND = 10059  # JetStream's error code
HINTS = {
    "not_authorized": "check --nats-creds, --nats-nkey, --nats-user and --nats-token, or the variables"
    " REBASER_NATS_CREDS, REBASER_NATS_NKEY, REBASER_NATS_USER and REBASER_NATS_PASSWORD, and REBASER_NATS_TOKEN",
    "not_secure": "check --nats-tls-ca, --nats-tls-cert, --nats-tls-key and --nats-tls-hostname",
}
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EBADF)  # errors that a write to stdout may raise
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# Packages that the base installation does not contain, and the extra that installs each of them.
EXTRAS = {
    "cel_expr_python": "server",
    "numba": "server",
    "obstore": "blobs",
    "packaging": "server",
    "pyspark": "spark",
}

# Advice for a rejected request, by error code: a command, its options, and what it does.
_ADVICE = {
    "closed": ("reopen", (), "opens it again"),
    "deleted": ("branches", ("--all",), "lists deleted change sets"),
    "no_such_change_set": ("list", (), "shows all change sets"),
    "not_its_target": ("branches", (), "shows the target of each branch"),
    "protected": ("protect", ("--off",), "ends the protection"),
    "purged": ("status", (), "shows how far back its history reaches"),
}
_OF_WORKSPACE = {"branches", "list"}  # commands about the workspace of a request; the others are about its change set


def _advice(code: str, workspace: str, name: str) -> str:
    if code == "unsupported":
        return "set REBASER_HISTORY_FOR on the servers"
    if code not in _ADVICE:
        return ""
    verb, options, purpose = _ADVICE[code]
    names = (workspace,) if verb in _OF_WORKSPACE else (workspace, name)
    return f"`{command(verb, *names, options=options)}` {purpose}"


class CommandFailed(Exception):  # noqa: N818 - `raise CommandFailed` reads like a sentence
    """The failure of a command (exit code 1). `message` is shown to the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def refusal(outcome: str, error: "RequestRejected", key: "ChangeSetKey", advice: Mapping[str, str]) -> CommandFailed:
    """Return an error that says why a request was rejected, and what to do.

    `outcome` says what did not happen, for instance "nothing was rebased". `key` is the change set that rejected the
    request, or to which the request relates. `advice` maps error codes to advice, and overrides the usual one.
    """
    workspace, name = key.workspace, key.change_set
    what = advice.get(error.code) or _advice(error.code, workspace, name)
    return CommandFailed(f"{outcome}: {error.reason}" + (f"; {what}" if what else ""))


def no_change_set(key: "ChangeSetKey") -> CommandFailed:
    """Return the error for a change set that does not exist."""
    lists = f"`{command('branches', key.workspace)}` lists change sets"
    creates = f"`{command('enqueue', key.workspace, key.change_set, options=('--set', 'ID=VALUE'))}` creates it"
    return CommandFailed(f"there is no change set {key.workspace}/{key.change_set}: {lists}, and {creates}")


async def check_exists(client: "RebaserClient", key: "ChangeSetKey") -> None:
    """Raise `CommandFailed` if the change set does not exist."""
    if not await client.exists(key.workspace, key.change_set):
        raise no_change_set(key)


def with_advice(line: str, error: RebaserError) -> str:
    """Return `line`, the message of `error`. If `error` is a rejected request, append advice on what to do."""
    response = getattr(error, "response", None)
    what = "" if response is None else _advice(error.code, response.workspace_id, response.change_set_id)
    return f"{line}; {what}" if what else line


def usage_error(message: str, option: str | None = None) -> typer.BadParameter:
    """Return an error in the command line itself (exit code 2). `option` is the option at fault."""
    return typer.BadParameter(message, param_hint=option)


def explain(error: BaseException) -> tuple[str, int] | None:
    """Return the line to show and the exit code for an expected failure, or None for an unexpected exception."""
    if isinstance(error, BaseExceptionGroup):
        leaves = [explain(leaf) for leaf in error.exceptions]
        return None if None in leaves else leaves[0]
    if isinstance(error, typer.TyperException):
        return _usage_line(error), error.exit_code
    if isinstance(error, CommandFailed):
        return error.message, FAILED
    if isinstance(error, RebaserError):
        return _rebaser_line(error), FAILED
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(error.name or "")):
        return f"this command needs {error.name}, which is not installed: pip install 'rebaser[{extra}]'", FAILED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", FAILED
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return f"cannot write the output: {error.strerror}", FAILED
    return None


def _usage_line(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rebaser"
    bare = isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None
    words = " ".join((error.message if bare else error.format_message()).split()).rstrip(".")
    words = words.replace(": Value error, ", ": ")
    return f"{words}; see: {command} --help"


def _rebaser_line(error: RebaserError) -> str:
    line = " ".join(error.message.split())
    if error.code == "not_ready" or getattr(error, "err_code", None) == STREAM_NOT_FOUND:
        return (
            "NATS has no streams of Rebaser, or its JetStream does not answer: start a server (`rebaser serve`), or "
            "check --prefix and the NATS account"
        )
    if error.code in HINTS:
        return f"{line} ({HINTS[error.code]})"
    if error.code == "not_connected" and "rebaser dev" not in line:
        line += " (start NATS with `rebaser dev`, or give its address with --nats or REBASER_NATS_URL)"
    return with_advice(line, error)


def is_broken_pipe(error: BaseException) -> bool:
    """Return whether the reader of stdout has closed the pipe, as in `rebaser get … | head`."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_broken_pipe(leaf) for leaf in error.exceptions)
    return isinstance(error, BrokenPipeError)


def silence_output() -> None:
    """Redirect stdout to the null device, so that the last flush of the interpreter raises no error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
