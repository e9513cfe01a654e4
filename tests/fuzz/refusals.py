"""Checks errors: an error of Rebaser is right if it has a code and a message."""

from collections.abc import Callable

from rebaser_core.errors import RebaserError


def refused(call: Callable[[], object]) -> object:
    """Return the result of `call`, or its error if that is a well-formed error of Rebaser."""
    try:
        return call()
    except RebaserError as error:
        return told(error)


def told(error: RebaserError) -> RebaserError:
    assert error.code
    assert len(error.message) < 2000
    error.message.encode()
    return error
