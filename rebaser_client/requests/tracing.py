"""Starts the spans of requests if the program set up OpenTelemetry before it connected the client.

Invariant: this module imports OpenTelemetry only if the program has imported it.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.streams.subjects import Subjects

if TYPE_CHECKING:
    from rebaser_client.requests.spans import ClientSpans, RequestSpans

_NO_SPANS = nullcontext(None)


def client_spans(subjects: Subjects) -> "ClientSpans | None":
    """Return the object that starts the spans of a client; None if the program has not set a tracer provider."""
    api: Any = sys.modules.get("opentelemetry.trace")
    # While another thread imports OpenTelemetry, its module exists, but has no functions yet.
    if api is None or not hasattr(api, "get_tracer_provider"):
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    from rebaser_client.requests.spans import ClientSpans  # noqa: PLC0415 - imports OpenTelemetry

    return ClientSpans(provider, subjects)


def request_spans(
    spans: "ClientSpans | None", key: ChangeSetKey, request_id: RequestId, wait: str
) -> "AbstractContextManager[RequestSpans | None]":
    """Return a context manager that lasts while the caller waits for a request, and yields the spans of the request.

    If `spans` is None, the context manager yields None.
    """
    return _NO_SPANS if spans is None else spans.request(key, request_id, wait)
