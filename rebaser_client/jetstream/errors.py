"""What can go wrong between us and the server, and the error codes of the JetStream API that callers decide on.

Invariant: an `ApiError` is an answer, so the server did decide; the other classes leave open whether it did anything.
"""

from rebaser_core.errors import TransientError

# Error codes of nats-server (server/errors.json)
CONSUMER_NAME_IN_USE = 10013
CONSUMER_NOT_FOUND = 10014
ACCOUNT_FULL = 10002
NO_RESOURCES = 10023  # the server has no room left for what streams store
MAX_CONSUMERS = 10026
NO_MESSAGE = 10037
SEQUENCE_NOT_FOUND = 10043  # of a delete
DELETE_FAILED = 10057  # of a delete: not found as well, where the text says so
STREAM_NAME_IN_USE = 10058  # with another configuration
STREAM_NOT_FOUND = 10059
STREAM_MISMATCH = 10060
MESSAGE_TOO_LARGE = 10054  # for this stream
WRONG_LAST_SEQUENCE = 10071
STORE_FAILED = 10077  # the stream is full, or the share of one subject is: see `is_subject_full`
CONSUMER_EXISTS = 10148  # with another configuration
TRY_AGAIN = 10164  # the expected sequence could not be checked just now

_SUBJECT_FULL = "maximum messages per subject exceeded"


class ApiError(TransientError):
    """JetStream refused. A caller who does not know `err_code` (0: the answer had none) can only try again later."""

    default_code = "jetstream"

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream: {description} (code {code}, error {err_code})")
        self.status = code
        self.err_code = err_code
        self.description = description


class PullRefusedError(TransientError):
    """The server ended a pull with an error. `status` is that of the answer (400, 409, ...), `description` its text."""

    default_code = "pull_refused"

    def __init__(self, status: str, description: str) -> None:
        super().__init__(f"JetStream refused a pull: {description} (status {status})")
        self.status = status
        self.description = description


class ConsumerDeletedError(PullRefusedError):
    """The consumer was deleted while it was pulled from."""

    default_code = "consumer_deleted"


def is_subject_full(error: ApiError) -> bool:
    """Whether a publish was refused because its subject holds as many messages as it may."""
    return error.err_code == STORE_FAILED and _SUBJECT_FULL in error.description


def is_full(error: ApiError) -> bool:
    """Whether a publish was refused because there is no room: for the subject, in the stream, or on the server."""
    return error.err_code in (ACCOUNT_FULL, NO_RESOURCES) or (
        error.err_code == STORE_FAILED and "maximum" in error.description
    )
