"""Whether the requests of a client belong to traces: if the program has set up OpenTelemetry before it connects.

Invariant: nothing of OpenTelemetry is imported unless the program has imported it.
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
    """Return what makes the spans of a client; None unless the program has set a tracer provider."""
    api: Any = sys.modules.get("opentelemetry.trace")
    # While another thread imports the module, it exists without its functions.
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
    """Return a context that lasts as long as the caller waits for a request, with the spans of the request, if any."""
    return _NO_SPANS if spans is None else spans.request(key, request_id, wait)
