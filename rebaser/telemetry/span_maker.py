"""Starts the spans of a server with OpenTelemetry. The server imports OpenTelemetry only if traces are on (see
`tracing`), and only in this module, `append_span`, `spans`, `update_spans` and `tracing`."""

import random
from collections.abc import Mapping, Sequence
from math import inf, log, log1p

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from rebaser.telemetry.catalogue import TRACES_LIMITED
from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser_client.jetstream import Message
from rebaser_core.messages.headers.traces import CAPITALIZED_PARENT, TRACEPARENT, TraceContext, read_trace

MAX_LINKS = 128  # maximum number of links of a span; also the default of OpenTelemetry
MAX_LATE = 10  # maximum number of slow requests and updates recorded per second: if all are slow, a sample is enough
NANOS = 1_000_000_000
_ROOT = Context()  # without it, a span would be the child of the span that is current in the program

Attributes = Mapping[str, str | int | float]
# The requests of a batch to record: the index of each, and the position in a trace from which it was sent.
Chosen = Sequence[tuple[int, TraceContext | None]]


class PerSecond:
    """Allows at most `limit` traces per second, and counts the refused ones in a metric."""

    def __init__(self, limit: float, why: str) -> None:
        self._limit = limit
        self._refused = TRACES_LIMITED.count(why)
        self._second = self._begun = 0

    def allows(self, now: int) -> bool:
        """Return whether one more trace may begin at `now`, the Unix time in nanoseconds."""
        second = now // NANOS
        if second != self._second:
            self._second, self._begun = second, 0
        if self._begun >= self._limit:
            self._refused.value += 1
            return False
        self._begun += 1
        return True


class SpanMaker:
    """Starts spans, and decides for which requests and updates the server begins a trace of its own.

    `ratio`, from 0 to 1, is the share of requests without a trace for which the server begins a trace. A request is
    slow if more than `slower_than` seconds pass from its storage to its answer. An update is slow if it takes more than
    `updates_slower_than` seconds. Slow requests and updates that have no trace are recorded after they have ended. Both
    limits may be infinite; the attribute `slower_than` is in nanoseconds.

    At most `per_second` requests are recorded in a second, and `MAX_LATE` slow ones in addition.
    """

    def __init__(
        self, tracer: Tracer, *, ratio: float, per_second: float, slower_than: float, updates_slower_than: float
    ) -> None:
        self._tracer = tracer
        self._ratio = ratio
        self._until = gap(ratio)  # how many requests without a trace to count; the last of them begins one
        self.slower_than = slower_than * NANOS  # not rounded, because it may be infinite
        self._updates_slower_than = updates_slower_than * NANOS
        self._chosen, self._late = PerSecond(per_second, "chosen"), PerSecond(MAX_LATE, "slow")

    def chosen(self, messages: Sequence[Message], count: int) -> Chosen:
        """Return which of the first `count` requests to record.

        If a request belongs to a trace, its sender has made the decision. Once this second's maximum is reached, no
        further request is recorded.
        """
        # Nearly every request comes by here, and begins and continues no trace.
        until = self._until - count
        if until > 0:
            for message in messages if len(messages) == count else messages[:count]:
                if TRACEPARENT in message.headers or CAPITALIZED_PARENT in message.headers:
                    break
            else:
                self._until = until
                return ()
        found: list[tuple[int, TraceContext | None]] = []
        for at in range(count):
            sender = read_trace(messages[at].headers)
            if sender is not None:
                wanted = sender.sampled
            else:
                self._until -= 1
                wanted = self._until <= 0
                if wanted:
                    self._until = gap(self._ratio)
            if wanted and self._chosen.allows(NATS_CLOCK.now_ns()):
                found.append((at, sender))
        return found

    def request_was_slow(self, now: int, nanoseconds: int) -> bool:
        """Return whether a request, or work that is part of no request, took so long that it is recorded although it
        was not `chosen`. `nanoseconds` is its duration. `now` is the Unix time in nanoseconds."""
        return nanoseconds > self.slower_than and self._late.allows(now)

    def update_was_slow(self, now: int, nanoseconds: int) -> bool:
        """Return whether an update took so long that it is recorded although no trace was begun for it. `nanoseconds`
        is its duration. `now` is the Unix time in nanoseconds."""
        return nanoseconds > self._updates_slower_than and self._late.allows(now)

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        began: int,
        parent: Span | SpanContext | None = None,
        links: Sequence[Span | SpanContext] = (),
    ) -> Span:
        """Start a span that began at `began` (Unix time in nanoseconds)."""
        if isinstance(parent, SpanContext):
            parent = NonRecordingSpan(parent)
        context = _ROOT if parent is None else set_span_in_context(parent, _ROOT)
        linked = [Link(one if isinstance(one, SpanContext) else one.get_span_context()) for one in links[:MAX_LINKS]]
        return self._tracer.start_span(name, context, kind, attributes, linked, start_time=began)


def gap(ratio: float) -> float:
    """Draw how many requests to count up to the next one to record, if each is recorded with the probability `ratio`.
    One draw for each recorded request takes less time than one for every request."""
    if ratio <= 0:
        return inf
    return 1 if ratio >= 1 else 1 + log(1 - random.random()) // log1p(-ratio)  # noqa: S311 - no secret


def is_sampled(span: Span) -> bool:
    """Return whether a span will be recorded; OpenTelemetry's own sampler may refuse it."""
    return bool(span.get_span_context().trace_flags.sampled)


def position(span: Span) -> TraceContext:
    """Return the position of `span` in its trace, for the headers of messages that are sent during `span`."""
    found = span.get_span_context()
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags), found.trace_state.to_header())


def remote(sender: TraceContext) -> SpanContext:
    """Return `sender`, the trace position from which a message was sent, as an OpenTelemetry span context."""
    state = TraceState.from_header([sender.state]) if sender.state else None
    return SpanContext(
        sender.trace_id, sender.span_id, is_remote=True, trace_flags=TraceFlags(sender.flags), trace_state=state
    )
