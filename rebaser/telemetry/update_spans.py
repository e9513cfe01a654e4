"""The spans of a dependent values update: the update itself, its stages, and the Spark jobs that compute its values."""

from collections.abc import Callable, Mapping, Sequence

from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode

from rebaser.telemetry.append_span import AppendSpan
from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser.telemetry.span_maker import MAX_LINKS, NANOS, Attributes, SpanMaker, position

MAX_STAGES = 128  # maximum number of stages that are kept for an update; each wave of packets has up to three
FIELDS = ("covers", "roots", "reached", "changed", "errors", "waves")


class UpdateSpans:
    """The spans of one update, which begins when this object is created. `about` are attributes of its span.

    If the update covers a commit that belongs to a recorded trace, its span begins at once. Otherwise, its stages are
    only kept in memory, and are recorded if the update was slow. `on_end` is called when the update ends, with the log
    sequence up to which derived values are then up to date, or with None if the update failed.
    """

    def __init__(self, maker: SpanMaker, about: Attributes, on_end: Callable[[int | None], None]) -> None:
        self._maker = maker
        self._about = about
        self._on_end = on_end
        self._began = NATS_CLOCK.now_ns()
        self._stages: list[tuple[str, int, int, Attributes]] = []
        self.append: AppendSpan | None = None
        self.span: Span | None = None

    def caused_by(self, commits: Sequence[SpanContext]) -> None:
        """Begin the span of the update if `commits` is not empty. `commits` are the spans of the covered commits that
        are recorded, newest first. The newest becomes the parent."""
        if commits:
            self.span = self._start(commits[0], commits[1:])

    def _start(self, parent: SpanContext | None = None, links: Sequence[SpanContext] = ()) -> Span:
        return self._maker.start("dvu", SpanKind.INTERNAL, self._about, began=self._began, parent=parent, links=links)

    def log_fields(self) -> dict[str, str]:
        """Return the fields `trace_id` and `span_id` for log events during the update; empty if the update has no
        span."""
        if self.span is None:
            return {}
        found = position(self.span)
        return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}

    def causes(self) -> list[Span]:
        """Return the spans that led to the commit of the update: only the span of the update, if it has one."""
        return [] if self.span is None else [self.span]

    def stage_ended(self, stage: str, seconds: float, wave: int, packets: int, size: int) -> None:
        """Note that the stage `stage` of the wave `wave` has ended after `seconds` seconds, with `packets` packets or
        results of `size` bytes in all."""
        if len(self._stages) < MAX_STAGES:
            now = NATS_CLOCK.now_ns()
            about = {"rebaser.wave": wave, "rebaser.packets": packets, "rebaser.bytes": size}
            self._stages.append((stage, now - round(seconds * NANOS), now, about))

    def job_ended(self, sharing: Sequence["UpdateSpans"], seconds: float, result: str, attributes: Attributes) -> None:
        """Record a Spark job that took `seconds`. `sharing` are the other updates that share the job. Of all these
        updates, the first that has a span becomes the parent of the job's span; the others are linked to it."""
        spans = [one.span for one in (self, *sharing) if one.span is not None]
        if not spans:
            return
        parent, *others = spans
        now = NATS_CLOCK.now_ns()
        given = {**attributes, "rebaser.spark.result": result}
        began = now - round(seconds * NANOS)
        span = self._maker.start("spark job", SpanKind.CLIENT, given, began=began, parent=parent, links=others)
        if result != "done":
            span.set_status(Status(StatusCode.ERROR, result))
        span.end(now)
        for other in others[:MAX_LINKS]:
            if other.is_recording():  # an update that was cancelled has ended before its job
                other.add_link(span.get_span_context())

    def ended(self, result: str, fields: Mapping[str, object]) -> None:
        """Record the update at its end. `result` is `done`, `failed`, `fenced` or `cancelled`. `fields` are the fields
        of its log event."""
        now, covers = NATS_CLOCK.now_ns(), fields.get("covers")
        self._on_end(covers if result == "done" and isinstance(covers, int) else None)
        late = self.span is None
        if late:
            if not self._maker.update_was_slow(now, now - self._began):
                return
            self.span = self._start()
        assert self.span is not None  # noqa: S101 - it was just made
        if self.append is not None:
            self.append.record(self.span if late else None)
        for stage, began, finished, about in self._stages:
            self._maker.start(f"dvu {stage}", SpanKind.INTERNAL, about, began=began, parent=self.span).end(finished)
        numbers = {f"rebaser.{name}": value for name in FIELDS if isinstance(value := fields.get(name), int)}
        self.span.set_attributes({"rebaser.result": result, **numbers})
        if isinstance(plan := fields.get("plan"), str) and plan:
            self.span.set_attribute("rebaser.plan", plan)
        if result != "done":
            self.span.set_status(Status(StatusCode.ERROR, result))
        self.span.end(now)
