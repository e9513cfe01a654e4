"""What the client can tell its caller, beyond the classes of `rebaser_core.errors`."""

from typing import ClassVar, Literal, TypeAlias

from rebaser_core.decide import REQUEST_ID_REUSED
from rebaser_core.errors import Disposition, RebaserError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import Conflicts, EnqueueUpdatesResponse, Failure, Success

Operation: TypeAlias = Literal["publish", "subscribe"]


class NotConnectedError(TransientError):
    """There is no connection to NATS just now, or there never was one. Nothing was sent."""

    default_code = "not_connected"


class NotAuthorized(NotConnectedError):  # noqa: N818 - a state of the connection
    """NATS does not know who we say we are: the credentials are missing or wrong."""

    default_code = "not_authorized"


class NotSecure(NotConnectedError):  # noqa: N818 - as above
    """The server cannot be talked to as securely as it was asked for: no TLS, or a certificate that is not trusted."""

    default_code = "not_secure"


class NotAllowed(RebaserError):  # noqa: N818 - as above
    """NATS knows us, and does not let us `publish` to `subject`, or `subscribe` to it. Nothing was sent."""

    default_code = "not_allowed"

    def __init__(self, operation: Operation, subject: str) -> None:
        right = "publish to" if operation == "publish" else "subscribe to"
        super().__init__(
            f"NATS does not allow this user to {right} {subject}: "
            "give it that right (deploy/docs/operating.md lists them)"
        )
        self.operation = operation
        self.subject = subject


class NotReadyError(TransientError):
    """NATS is there, but nobody stores requests: no server has set up the streams yet."""

    default_code = "not_ready"

    def __init__(self) -> None:
        super().__init__("NATS answers, but Rebaser's streams are not there: has a server been started?")


class ClientClosedError(RebaserError):
    """The client, or its connection, was closed. What was sent before may have been stored and applied."""

    default_code = "closed"

    def __init__(self) -> None:
        super().__init__("the client is closed")


Scope: TypeAlias = Literal["change set", "all"]


class QueueFull(TransientError):  # noqa: N818 - a state of the queue
    """No more requests may wait, in this change set or in `all`. Nothing was stored.

    `retry_after` (seconds) is when to try again: it grows for as long as the queue stays full, and differs from caller
    to caller, so that they do not all come back at once.
    """

    default_code = "queue_full"

    def __init__(self, key: ChangeSetKey, scope: Scope, retry_after: float, reason: str) -> None:
        whose = f"the queue of {key} is full" if scope == "change set" else "the queue of all requests is full"
        super().__init__(f"{whose} ({reason}); try again in {retry_after:.1f} s")
        self.key = key
        self.scope = scope
        self.retry_after = retry_after


class TooLarge(UnprocessableError):  # noqa: N818 - a state of the request
    """The request is larger than the installation takes. Nothing was stored; send it in parts. Sizes are bytes."""

    default_code = "too_large"

    def __init__(self, size: int, limit: int | None) -> None:
        most = "than the stream of requests takes" if limit is None else f"than {limit:,} bytes"
        super().__init__(f"the request has {size:,} bytes, more {most}; send it in parts")
        self.size = size
        self.limit = limit


class RequestTimeout(TransientError):  # noqa: N818 - as above
    """Not all that was asked for happened in time; `commit` says what did.

    None: there was no answer, and the request may still be applied; send it again with the same `request_id` to find
    out. A log sequence: it was applied in that commit, but derived values were not up to date yet; `wait_covered`
    waits for them.
    """

    default_code = "request_timeout"

    def __init__(self, request_id: RequestId, timeout: float, commit: int | None = None) -> None:
        became = (
            f"was not answered within {timeout:g} s; it may still be applied"
            if commit is None
            else f"was applied in commit {commit}, but derived values were not up to date within {timeout:g} s"
        )
        super().__init__(f"request {request_id} {became}")
        self.request_id = request_id
        self.commit = commit


class RequestRejected(RebaserError):  # noqa: N818 - as above
    """Nothing was applied, and sending it again changes nothing; `response` says why."""

    disposition: ClassVar[Disposition] = Disposition.REJECT
    default_code = "rejected"

    def __init__(self, request_id: RequestId, response: EnqueueUpdatesResponse) -> None:
        status = response.status
        message = "" if isinstance(status, Success) else status.message
        code = status.code if isinstance(status, Failure) else None
        super().__init__(f"request {request_id} was rejected: {message}", code=code)
        self.request_id = request_id
        self.response = response


class RequestConflicts(RequestRejected):
    """Updates from another change set (`from_change_set`) do not fit here: they remove what is not here any more.

    `conflicts`: which values do not fit, and why: the first 100. Empty in an answer given again; the message names ten.
    """

    default_code = "conflicts"

    def __init__(self, request_id: RequestId, response: EnqueueUpdatesResponse) -> None:
        super().__init__(request_id, response)
        status = response.status
        self.conflicts = status.conflicts if isinstance(status, Conflicts) else ()


class RequestIdReused(RequestRejected):
    """Another request, with other content, was decided under this id before; it keeps its outcome."""

    default_code = REQUEST_ID_REUSED
