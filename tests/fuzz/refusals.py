"""What a check makes of errors: ours are right if they say what they should."""

from collections.abc import Callable

from rebaser_core.errors import RebaserError


def refused(call: Callable[[], object]) -> object:
    """What `call` returns; the error, if it is one of ours and says what it should."""
    try:
        return call()
    except RebaserError as error:
        return told(error)


def told(error: RebaserError) -> RebaserError:
    assert error.code
    assert len(error.message) < 2000
    error.message.encode()
    return error
