"""Every failure Rebaser knows, sorted by what has to be done about it.

Invariant: a class exists here only where its handler does something different, and the class alone fixes that
disposition. What went wrong in detail is the `code` (stable, for machines) and the message (for people).
"""

from enum import Enum
from typing import ClassVar


class Disposition(Enum):
    """What happens to a request or a process that met an error."""

    RETRY = "retry"  # keep the request, stop owning, nak the task with a delay
    WAIT_FOR_NEWER = "wait_for_newer"  # as RETRY, for a bounded time; then REJECT
    REJECT = "reject"  # decide it `dead`: commit, dead letter, error reply, delete
    FENCE = "fence"  # somebody else owns the change set: stop without ack or nak
    RETRY_DVU = "retry_dvu"  # the roots stay; run the update again, later
    EXIT = "exit"  # tell the user in one line and end the process


class RebaserError(Exception):
    """Base of all errors raised by Rebaser. `code` is a stable word for machines."""

    disposition: ClassVar[Disposition] = Disposition.RETRY
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code


class TransientError(RebaserError):
    """Something outside is away for now (NATS, the blob store, a missing blob): try again later."""

    disposition = Disposition.RETRY
    default_code = "transient"


class UnsupportedVersion(RebaserError):  # noqa: N818 - the name the protocol gives it
    """A message of a version newer than this program: leave it to a newer server."""

    disposition = Disposition.WAIT_FOR_NEWER
    default_code = "unsupported_version"


class UnprocessableError(RebaserError):
    """Input that no retry can mend: malformed bytes, an invalid update, an unknown message type."""

    disposition = Disposition.REJECT
    default_code = "unprocessable"


class FencedError(RebaserError):
    """The log moved under this owner: another server owns the change set now."""

    disposition = Disposition.FENCE
    default_code = "fenced"


class DvuError(RebaserError):
    """A dependent values update could not run (Spark away, job failed). A failing *value* is not this."""

    disposition = Disposition.RETRY_DVU
    default_code = "dvu"


class ConfigError(RebaserError):
    """A setting or the environment is wrong; one clear line tells the user what to change."""

    disposition = Disposition.EXIT
    default_code = "config"
