"""What a person is told when a command cannot do its work: one line that says what to do, never a traceback.

Invariant: an expected failure becomes (line, exit code) here and nowhere else; what is not expected stays an exception
with its traceback, because it is a bug that somebody will have to find.
"""

import errno
import os

import typer

from rebaser_core.errors import RebaserError

STREAM_NOT_FOUND = 10059  # JetStream's error code
HINTS = {
    "not_authorized": "check --nats-creds, --nats-nkey, --nats-user, --nats-token, or their variables:"
    " REBASER_NATS_CREDS, REBASER_NATS_NKEY, REBASER_NATS_USER and REBASER_NATS_PASSWORD, REBASER_NATS_TOKEN",
    "not_secure": "see --nats-tls-ca, --nats-tls-cert, --nats-tls-key and --nats-tls-hostname",
}
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EBADF)  # what our output may be
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# What the base install leaves out, by the extra that brings it.
EXTRAS = {
    "cel_expr_python": "server",
    "numba": "server",
    "obstore": "blobs",
    "packaging": "server",
    "pyspark": "spark",
}


class CommandFailed(Exception):  # noqa: N818 - the sentence a reader sees: "command failed"
    """The command did what it could and the answer is no. The message is for people."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def usage_error(message: str, option: str | None = None) -> typer.BadParameter:
    """An error of the one who typed the command (exit 2)."""
    return typer.BadParameter(message, param_hint=option)


def explain(error: BaseException) -> tuple[str, int] | None:
    """`(line, exit code)` of an expected failure, or None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        leaves = [explain(one) for one in error.exceptions]
        return None if None in leaves else leaves[0]
    if isinstance(error, typer.TyperException):
        return _usage_line(error), error.exit_code
    if isinstance(error, CommandFailed):
        return error.message, FAILED
    if isinstance(error, RebaserError):
        return _rebaser_line(error), FAILED
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(error.name or "")):
        return f"this needs {error.name}, which is not installed: pip install 'rebaser[{extra}]'", FAILED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", FAILED
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return f"the output could not be written: {error.strerror}", FAILED
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
        return "NATS answers, but Rebaser's streams are not there: start a server (`rebaser serve`), or check --prefix"
    if error.code in HINTS:
        return f"{line} ({HINTS[error.code]})"
    if error.code == "not_connected" and "rebaser dev" not in line:
        line += " (start one with `rebaser dev`, or name another with --nats or REBASER_NATS_URL)"
    return line


def is_broken_pipe(error: BaseException) -> bool:
    """Whether the reader of our output went away (`rebaser get … | head`)."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_broken_pipe(one) for one in error.exceptions)
    return isinstance(error, BrokenPipeError)


def silence_output() -> None:
    """Point the standard streams nowhere, so that the interpreter's last flush does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
