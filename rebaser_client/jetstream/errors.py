"""The errors of the JetStream layer, and the error codes of the API that callers distinguish.

Invariant: an `ApiError` is raised only if the server answered that it refused the call. After any other error, it is
unknown whether the call had an effect.
"""

from rebaser_core.errors import TransientError

# Error codes of nats-server (server/errors.json)
CONSUMER_NAME_IN_USE = 10013
CONSUMER_NOT_FOUND = 10014
ACCOUNT_FULL = 10002
NO_RESOURCES = 10023  # the server has no more room for streams
MAX_CONSUMERS = 10026
NO_MESSAGE = 10037
SEQUENCE_NOT_FOUND = 10043  # the message to delete does not exist
DELETE_FAILED = 10057  # a message was not deleted; the description says whether it exists
STREAM_NAME_IN_USE = 10058  # a stream with another configuration has this name
STREAM_NOT_FOUND = 10059
STREAM_MISMATCH = 10060
MESSAGE_TOO_LARGE = 10054  # the message is larger than the stream accepts
WRONG_LAST_SEQUENCE = 10071
STORE_FAILED = 10077  # for example, the stream or one of its subjects is full; see `is_subject_full`
CONSUMER_EXISTS = 10148  # a consumer with another configuration has this name
TRY_AGAIN = 10164  # the expected sequence cannot be checked at the moment

# What to do about an error that a retry does not resolve.
_ADVICE = {
    MAX_CONSUMERS: "; raise max_consumers of the stream or of the account, or delete unused consumers "
    "(`nats consumer report` lists all)",
}
_SUBJECT_FULL = "maximum messages per subject exceeded"
NO_SPACE = "no space left on device"  # part of the description if the disk of nats-server is full


class ApiError(TransientError):
    """JetStream refused a call.

    `status` and `err_code` are the codes in the answer; `err_code` is 0 if the answer has none. A caller that does not
    handle this `err_code` can only retry later.
    """

    default_code = "jetstream"

    def __init__(self, code: int, err_code: int, description: str) -> None:
        advice = _ADVICE.get(err_code, "")
        super().__init__(f"JetStream: {description} (code {code}, error {err_code}){advice}")
        self.status = code
        self.err_code = err_code
        self.description = description


class PullRefusedError(TransientError):
    """The server ended a pull with an error: `status` (400, 409, ...) and `description` are from its answer."""

    default_code = "pull_refused"

    def __init__(self, status: str, description: str) -> None:
        super().__init__(f"JetStream refused a pull: {description} (status {status})")
        self.status = status
        self.description = description


class ConsumerDeletedError(PullRefusedError):
    """The consumer was deleted while messages were pulled from it."""

    default_code = "consumer_deleted"


def is_subject_full(error: ApiError) -> bool:
    """Return whether a publish was refused because its subject has the maximum number of messages."""
    return error.err_code == STORE_FAILED and _SUBJECT_FULL in error.description


def is_full(error: ApiError) -> bool:
    """Return whether a publish was refused because the subject, the stream, the server or its disk is full."""
    return error.err_code in (ACCOUNT_FULL, NO_RESOURCES) or (
        error.err_code == STORE_FAILED and ("maximum" in error.description or NO_SPACE in error.description)
    )
