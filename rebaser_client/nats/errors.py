"""Requests that got no answer: whether the server did anything is unknown."""

from rebaser_core.errors import TransientError


class NoRespondersError(TransientError):
    """Nobody listens on the subject: the stream does not exist, or JetStream is not available."""

    default_code = "no_responders"


class RequestTimeoutError(TransientError):
    """No answer arrived in time, or before the connection was lost. The request may have taken effect."""

    default_code = "timeout"
