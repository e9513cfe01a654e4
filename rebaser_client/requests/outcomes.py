"""Reads the answers to requests, builds the errors for callers, and caches the keys of change sets."""

from functools import lru_cache

from rebaser_client.errors import RequestConflicts, RequestIdReused, RequestRejected, RequestTimeout
from rebaser_client.jetstream import Connection, Msg
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import REQUEST_ID_REUSED, RebaserError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import REGISTRY, Conflicts, EnqueueUpdatesResponse, Failure, decode, peek
from rebaser_core.messages.response import RESPONSE, read_plain_success

MAX_KEYS = 16_384  # change sets whose keys are cached
_PLAIN = peek(REGISTRY.headers(RESPONSE.name, 1))


def answer(message: Msg, key: ChangeSetKey, request_id: RequestId, limits: Limits) -> EnqueueUpdatesResponse:
    """Return the answer of a server to the request `request_id` for `key`. Raise the errors of `decode`."""
    if peek(message.headers) is _PLAIN and len(message.data) <= limits.max_request_bytes:
        status = read_plain_success(message.data, request_id, key.workspace, key.change_set)
        if status is not None:
            return EnqueueUpdatesResponse(request_id, key.workspace, key.change_set, status)
    return decode(message.headers, message.data, limits, expect=EnqueueUpdatesResponse)


def rejection(request_id: RequestId, response: EnqueueUpdatesResponse) -> RequestRejected:
    """Return the error to raise for a response that is not a success."""
    if isinstance(response.status, Conflicts):
        return RequestConflicts(request_id, response)
    if isinstance(response.status, Failure) and response.status.code == REQUEST_ID_REUSED:
        return RequestIdReused(request_id, response)
    return RequestRejected(request_id, response)


def not_sent(connection: Connection, request_id: RequestId, timeout: float) -> RebaserError:
    """Return the error to raise for a request that could not be sent within `timeout` seconds.

    Either there is no connection to NATS, or earlier requests are still being stored.
    """
    if not connection.connected:
        return NotConnectedError("there is no connection to NATS: try again after the client has reconnected")
    return RequestTimeout(request_id, timeout)


# Keys are cached, because the same names recur, and because a dict finds the same key object without comparing fields.
_cached_key = lru_cache(MAX_KEYS, typed=True)(ChangeSetKey.of)


def known_key(workspace: object, change_set: object) -> ChangeSetKey:
    """Return a key like `ChangeSetKey.of`, but return the same object for the same names if possible."""
    try:
        return _cached_key(workspace, change_set)
    except TypeError:  # a name is not hashable, so it cannot be looked up in the cache
        return ChangeSetKey.of(workspace, change_set)
