"""Requests that got no answer: whether the server did anything is unknown."""

from rebaser_core.errors import TransientError


class NoRespondersError(TransientError):
    """Nobody listens on the subject: the stream does not exist, or JetStream is not available."""

    default_code = "no_responders"


class NoAnswerError(TransientError):
    """No answer to a message arrived in time, or before the connection was lost. The message may have taken effect."""

    default_code = "timeout"
