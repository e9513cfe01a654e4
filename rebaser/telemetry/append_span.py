"""Defines the span that covers the append of a commit to its log."""

from collections.abc import Sequence

from opentelemetry.trace import Span, SpanKind

from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser.telemetry.span_maker import Attributes, SpanMaker, position
from rebaser_core.messages.headers.traces import trace_headers


class AppendSpan:
    """The span of the append of the commit `commit_id`, which decides `requests` requests. Its size is `size` bytes.
    The append begins when this object is created. `causes` are the spans of the requests or of the update that led to
    the commit: the first becomes the parent of the new span, and the others are linked to it. If `causes` is empty, no
    span is started.

    `name` and `about` are the span's name and attributes.
    """

    __slots__ = ("_about", "_began", "_ended", "_maker", "_name", "_sequence", "retries", "span")

    def __init__(
        self,
        maker: SpanMaker,
        name: str,
        about: Attributes,
        *,
        commit_id: str,
        requests: int,
        size: int,
        causes: Sequence[Span],
    ) -> None:
        self._maker = maker
        self._name = name
        self._about = {
            **about,
            "messaging.message.id": commit_id,
            "messaging.message.body.size": size,
            "messaging.batch.message_count": max(requests, 1),
        }
        self._began = NATS_CLOCK.now_ns()
        self._ended = self._sequence = self.retries = 0
        self.span: Span | None = None
        if causes:
            self.span = self._start(causes[0], causes[1:])
            for other in causes[1:]:
                other.add_link(self.span.get_span_context())

    def took_place(self, began: int, ended: int, sequence: int) -> None:
        """Note that the append took place earlier, between two times (Unix ns), and its position in the log."""
        self._began, self._ended, self._sequence = began, ended, sequence

    def _start(self, parent: Span, others: Sequence[Span] = ()) -> Span:
        began, about = self._began, self._about
        return self._maker.start(self._name, SpanKind.PRODUCER, about, began=began, parent=parent, links=others)

    def headers(self) -> dict[str, str]:
        """Return headers for the commit that let readers of the log continue the trace."""
        return {} if self.span is None else trace_headers(position(self.span))

    def landed(self, sequence: int) -> None:
        """Note that the commit is in the log at position `sequence`."""
        self._ended, self._sequence = NATS_CLOCK.now_ns(), sequence

    def record(self, late_parent: Span | None = None) -> None:
        """Record the span if the commit is in the log. If `late_parent`, a span that was started only after the append,
        is given, record a new span for the append as its child instead."""
        span = self.span if late_parent is None else self._start(late_parent)
        if span is not None and self._ended:
            span.set_attributes({"rebaser.commit.sequence": self._sequence, "rebaser.retries": self.retries})
            span.end(self._ended)
