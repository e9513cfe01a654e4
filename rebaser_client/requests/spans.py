"""The spans of requests in a client.

The span `enqueue rebaser` ends when the outcome of the request is known. Its child span `publish …` ends when NATS has
stored the request. The headers of the request refer to the `publish` span, so the server can continue the trace.

Invariant: an exception that one of the program's span processors raises does not affect any request.
"""

from types import TracebackType
from typing import Self

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes

from rebaser_client.logs import get_logger
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import Conflicts, EnqueueUpdatesResponse, Failure, Success
from rebaser_core.messages.headers.traces import TraceContext, trace_headers
from rebaser_core.streams.subjects import Subjects

log = get_logger(__name__)


class ClientSpans:
    """Starts the spans of the requests of one client."""

    def __init__(self, provider: TracerProvider, subjects: Subjects) -> None:
        self.tracer = provider.get_tracer("rebaser_client")
        self.subjects = subjects
        self.template = f"{subjects.root}.requests.{{workspace}}.{{change_set}}"
        self._failed = False  # whether a processor of the program has raised an exception

    def request(self, key: ChangeSetKey, request_id: RequestId, wait: str) -> "RequestSpans":
        """Start the `enqueue` span of a request, as a child of the program's current span.

        `wait` says what the caller waits for; it becomes an attribute of the span.
        """
        return RequestSpans(self, key, request_id, wait)

    def start(self, name: str, kind: SpanKind, attributes: Attributes, context: Context | None = None) -> Span:
        """Start a span; if that fails, return a span that is not recorded."""
        try:
            return self.tracer.start_span(name, context, kind, attributes)
        except Exception as error:  # noqa: BLE001 - raised by code of the program
            self._report(error)
            return INVALID_SPAN

    def end(self, span: Span) -> None:
        """End `span`."""
        try:
            span.end()
        except Exception as error:  # noqa: BLE001 - raised by code of the program
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._failed:  # once, because each request would fail in the same way
            self._failed = True
            log.warning("span_failed", reason=f"{type(error).__name__}: {error}"[:300])


class RequestSpans:
    """The spans of one request. A `with` block ends them, with the exception that leaves the block, if any."""

    def __init__(self, client: ClientSpans, key: ChangeSetKey, request_id: RequestId, wait: str) -> None:
        self._client = client
        self._key = key
        self._id = request_id
        self._derives = wait == "derived"
        about = {"rebaser.workspace": key.workspace, "rebaser.change_set": key.change_set, "rebaser.wait": wait}
        self._enqueue = client.start("enqueue rebaser", SpanKind.INTERNAL, about)
        self._publish: Span | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._derives:
            self._enqueue.add_event("derived")  # the caller waited until the derived values were up to date
        self.ended(error)

    def publish_begins(self, headers: dict[str, str], size: int, updates: int | None) -> None:
        """Start the `publish` span, and add headers that refer to this span to `headers`.

        `size` is the size of the payload in bytes, and `updates` the number of updates, or None if it is unknown.
        """
        client = self._client
        subject = client.subjects.requests(self._key)
        self._publish = client.start(
            f"publish {client.template}",
            SpanKind.PRODUCER,
            {
                "messaging.system": "nats",
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
                "messaging.destination.name": subject,
                "messaging.destination.template": client.template,
                "messaging.message.id": self._id,
                "messaging.message.body.size": size,
                **({} if updates is None else {"rebaser.updates": updates}),
            },
            set_span_in_context(self._enqueue),
        )
        found = self._publish.get_span_context()
        if found.is_valid:
            state = found.trace_state.to_header()
            position = TraceContext(found.trace_id, found.span_id, int(found.trace_flags), state)
            headers.update(trace_headers(position))

    def stored(self) -> None:
        """End the `publish` span, because NATS has confirmed that the request is stored."""
        if self._publish is not None:
            self._client.end(self._publish)
            self._publish = None

    def answered(self, response: EnqueueUpdatesResponse) -> None:
        """Record the outcome in `response`, and the commit if there is one, as attributes of the `enqueue` span."""
        status = response.status
        outcome = {Success: "success", Conflicts: "conflicts", Failure: "error"}[type(status)]
        self._enqueue.set_attribute("rebaser.outcome", outcome)
        if status.commit is not None:
            self._enqueue.set_attribute("rebaser.commit.sequence", status.commit)
            self._enqueue.add_event("applied")

    def ended(self, error: BaseException | None) -> None:
        """End the open spans. `error` is the error that the caller gets; None if there is none."""
        for span in self._publish, self._enqueue:
            if span is not None:
                if error is not None:
                    code = error.code if isinstance(error, RebaserError) else type(error).__name__
                    span.set_attribute("error.type", code)
                    span.set_status(Status(StatusCode.ERROR))
                self._client.end(span)
        self._publish = None
