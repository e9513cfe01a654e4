"""Defines Rebaser's exceptions, with one class for each way to handle a failure.

The `disposition` of a class says how a server handles its exceptions, with two exceptions. An `UnprocessableError` that
is raised while a server reads what an action needs, such as another log, is not REJECT: the request is refused with the
outcome `error`. And if reading a request fails with one of `HELD_CODES` or `INTERNAL_CODES` of
`rebaser.change_set.readers.request_reader`, the request waits for a bounded time, or a bounded number of attempts.

The `code` of an exception is for programs and does not change between releases; its message is for people.
"""

from enum import Enum
from typing import ClassVar, Final

REQUEST_ID_REUSED: Final = "request_id_reused"  # the error code if a different request has already used the same id


class Disposition(Enum):
    """How an error is handled: what happens to the request that caused it, or to the process."""

    RETRY = "retry"  # the request stays in its queue; the owner ends, and its task is delivered again after a delay
    WAIT_FOR_NEWER = "wait_for_newer"  # the error is handled like RETRY for a bounded time, and then like REJECT
    REJECT = "reject"  # the request gets the outcome `dead`, and is moved to the dead letters
    FENCE = "fence"  # another server owns the change set, so this owner ends without an ack or nak
    RETRY_DVU = "retry_dvu"  # the update of derived values runs again later
    EXIT = "exit"  # the user gets a one-line message, and the process ends


class RebaserError(Exception):
    """The base class of all errors that Rebaser raises. `code` identifies the error for programs, and does not change
    between releases."""

    disposition: ClassVar[Disposition] = Disposition.RETRY
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code


class TransientError(RebaserError):
    """Something outside this process is temporarily unavailable, such as NATS, the blob store or a blob. Try again
    later."""

    disposition = Disposition.RETRY
    default_code = "transient"


class UnsupportedVersion(RebaserError):  # noqa: N818 - the protocol uses this name
    """The message has a newer version than this program can read. A server with a newer release must process it."""

    disposition = Disposition.WAIT_FOR_NEWER
    default_code = "unsupported_version"


class UnprocessableError(RebaserError):
    """The input can never be processed, however often it is retried. For example, its bytes are malformed, or an update
    or the message type is not valid."""

    disposition = Disposition.REJECT
    default_code = "unprocessable"


class FencedError(RebaserError):
    """This owner must not append to the log of its change set any more.

    Another writer has appended to the log, or the log was recreated or restored from a backup. Or this owner has
    appended a commit that creates, deletes or restores the change set. Or NATS did not answer an append before the
    owner was shut down, or before the blobs of the commit may have been deleted.
    """

    disposition = Disposition.FENCE
    default_code = "fenced"


class DvuError(RebaserError):
    """A dependent values update (DVU) could not run, because Spark is unavailable or its job failed.

    If a single value cannot be computed, this is recorded as a `Fault` of the value, and no error is raised.
    """

    disposition = Disposition.RETRY_DVU
    default_code = "dvu"


class ConfigError(RebaserError):
    """A setting or the environment is wrong. The message is one line that tells the user what to change."""

    disposition = Disposition.EXIT
    default_code = "config"
