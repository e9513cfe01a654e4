"""Requests that nobody answered: they leave open whether the server did anything."""

from rebaser_core.errors import TransientError


class NoRespondersError(TransientError):
    """Nobody listens on the subject: the stream is not there, or JetStream is away."""

    default_code = "no_responders"


class RequestTimeoutError(TransientError):
    """No answer came, in time or before the connection was lost. What was asked for may have happened."""

    default_code = "timeout"
