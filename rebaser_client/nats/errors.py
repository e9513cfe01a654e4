"""The errors of requests that got no answer from their receiver."""

from rebaser_core.errors import TransientError


class NoRespondersError(TransientError):
    """The subject has no subscriber: the stream does not exist, or JetStream is not available."""

    default_code = "no_responders"


class NoAnswerError(TransientError):
    """No answer to a message arrived in time, or before the connection was lost. The message may have taken effect."""

    default_code = "timeout"
