"""The errors of connections to NATS, and of requests that got no answer from their receiver."""

from typing import Literal, TypeAlias

from rebaser_core.errors import RebaserError, TransientError

Operation: TypeAlias = Literal["publish", "subscribe"]


class NotConnectedError(TransientError):
    """There is no connection to NATS. Nothing was sent."""

    default_code = "not_connected"


class NotAuthorized(NotConnectedError):  # noqa: N818 - named after a state of the connection
    """NATS refused the client: its credentials are missing or wrong."""

    default_code = "not_authorized"


class NotSecure(NotConnectedError):  # noqa: N818 - named after a state of the connection
    """The NATS server does not offer TLS although it is required, or its certificate is not trusted."""

    default_code = "not_secure"


class NotAllowed(RebaserError):  # noqa: N818 - named after a state of the connection
    """NATS accepted the credentials, but they do not allow `operation` on `subject`. Nothing was sent."""

    default_code = "not_allowed"

    def __init__(self, operation: Operation, subject: str) -> None:
        action = "publish to" if operation == "publish" else "subscribe to"
        super().__init__(
            f"NATS does not allow this user to {action} {subject}: "
            "grant this permission (deploy/docs/operating.md lists the permissions that Rebaser needs)"
        )
        self.operation = operation
        self.subject = subject


class ClientClosedError(RebaserError):
    """The client, or its connection, was closed. Requests that were sent before may have been stored and applied."""

    default_code = "closed"

    def __init__(self, message: str = "the client is closed: connect again") -> None:
        super().__init__(message)


class NoRespondersError(TransientError):
    """The subject has no subscriber: the stream does not exist, or JetStream is not available."""

    default_code = "no_responders"


class NoAnswerError(TransientError):
    """No answer to a message arrived in time, or before the connection was lost. The message may have taken effect."""

    default_code = "timeout"
