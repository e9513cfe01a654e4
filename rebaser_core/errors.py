"""The exceptions of Rebaser, one class for each way of handling a failure.

Invariant: only the class of an exception determines how the failure is handled, and no two classes are handled in the
same way. The details are in `code` (stable, for programs) and in the message (for people).
"""

from enum import Enum
from typing import ClassVar, Final

REQUEST_ID_REUSED: Final = "request_id_reused"  # the code of a request that reuses the id of another


class Disposition(Enum):
    """The consequence of an error for the request or the process that met it."""

    RETRY = "retry"  # keep the request, stop owning, nak the task with a delay
    WAIT_FOR_NEWER = "wait_for_newer"  # like RETRY for a bounded time, then like REJECT
    REJECT = "reject"  # decide it `dead`: commit, dead letter, error reply, delete
    FENCE = "fence"  # another server owns the change set: stop without ack or nak
    RETRY_DVU = "retry_dvu"  # the roots stay; run the update again later
    EXIT = "exit"  # tell the user in one line and end the process


class RebaserError(Exception):
    """Base of all errors that Rebaser raises. `code` is a stable word for programs."""

    disposition: ClassVar[Disposition] = Disposition.RETRY
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code


class TransientError(RebaserError):
    """Something outside this process is unavailable for now (NATS, the blob store, a blob): try again later."""

    disposition = Disposition.RETRY
    default_code = "transient"


class UnsupportedVersion(RebaserError):  # noqa: N818 - the protocol uses this name
    """The message has a newer version than this program can read: leave it to a newer server."""

    disposition = Disposition.WAIT_FOR_NEWER
    default_code = "unsupported_version"


class UnprocessableError(RebaserError):
    """Input that fails on every retry: malformed bytes, an invalid update, an unknown message type."""

    disposition = Disposition.REJECT
    default_code = "unprocessable"


class FencedError(RebaserError):
    """This owner must not append to the log of its change set any more.

    Another writer has appended, the owner has appended a `create` commit, or it was shut down before an append was
    answered.
    """

    disposition = Disposition.FENCE
    default_code = "fenced"


class DvuError(RebaserError):
    """A dependent values update (DVU) could not run: Spark is unavailable or its job failed.

    A *value* that fails is recorded as a `Fault` and raises nothing.
    """

    disposition = Disposition.RETRY_DVU
    default_code = "dvu"


class ConfigError(RebaserError):
    """A setting or the environment is wrong. The message is one line that tells the user what to change."""

    disposition = Disposition.EXIT
    default_code = "config"
