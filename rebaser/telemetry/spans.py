"""The spans of the requests, commits and updates of one change set, on the server that owns it.

Invariant: a request has one span for each answer. The span is recorded once the answer is sent. A batch that fails
records nothing, because its requests are decided again, by this owner or the next one. All times come from the clock
of NATS (`clocks`), because NATS stamps the requests.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode

from rebaser.telemetry.append_span import AppendSpan
from rebaser.telemetry.clocks import NATS_CLOCK, Append, clock
from rebaser.telemetry.span_maker import MAX_LINKS, NANOS, Attributes, Chosen, SpanMaker, is_sampled, position, remote
from rebaser.telemetry.update_spans import UpdateSpans
from rebaser_client.jetstream import Message
from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.decisions.decide import DecidedBatch
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages.dead_letter import read_redrive
from rebaser_core.messages.headers.traces import TraceContext, read_trace, trace_headers
from rebaser_core.streams.subjects import Subjects


class Traced(Protocol):
    """The log of a change set. `traces` exists if traces are on, and `spans` while something is being recorded."""

    key: ChangeSetKey
    logger: Any
    subjects: Subjects
    traces: "ServerSpans | None"
    spans: "ChangeSetSpans | None"


class ServerSpans:
    """Makes the spans of all change sets of a server.

    Nearly all requests are not recorded. The owner learns this from `maker`, which all owners share, because an object
    of its own for each of thousands of change sets would not be in the processor's caches.
    """

    __slots__ = ("maker",)

    def __init__(self, maker: SpanMaker) -> None:
        self.maker = maker

    def of(self, log: Traced) -> "ChangeSetSpans":
        """Return the spans of the change set of `log`. They are made if they do not exist."""
        if log.spans is None:
            log.spans = ChangeSetSpans(self.maker, log.subjects, log.key)
        return log.spans

    def slow_work_ended(self, name: str, key: ChangeSetKey, seconds: float, attributes: Attributes) -> None:
        """Record work on a change set that is part of no request, such as loading the log, if it took longer than the
        limit for slow requests."""
        now, duration = NATS_CLOCK.now_ns(), round(seconds * NANOS)
        if self.maker.request_was_slow(now, duration):
            about = {**about_change_set(key), **attributes}
            self.maker.start(name, SpanKind.INTERNAL, about, began=now - duration).end(now)


def about_change_set(key: ChangeSetKey) -> Attributes:
    return {"rebaser.workspace": key.workspace, "rebaser.change_set": key.change_set}


class ChangeSetSpans:
    """Makes the spans of one change set while requests, commits or updates of it are being recorded.

    For a batch of requests, the owner calls `decided`, where `taken` is the time at which it began to read them
    (`time.monotonic_ns`), and `chosen` are those that `SpanMaker.chosen` returned. Its log calls `append_begins` and
    `append_ended` for each commit; it may leave this out for requests if neither `batch` nor `uncovered` is set. Once
    the answers are sent, the owner calls `answered` if `batch` is set, or if the oldest request took longer than
    `SpanMaker.slower_than` nanoseconds.
    """

    def __init__(self, maker: SpanMaker, subjects: Subjects, key: ChangeSetKey) -> None:
        self.maker = maker
        self._about = about_change_set(key)
        self.requests = self._destination(subjects, "requests", subjects.requests(key), "process", "process")
        self._commits = self._destination(subjects, "commits", subjects.commits(key), "publish", "send")
        self.batch: _Batch | None = None  # the batch being decided, if some of its requests are recorded
        self._update: UpdateSpans | None = None
        self._append: AppendSpan | None = None
        self._owes = False  # whether an update is due after the commit being appended
        # The recorded commits that no update covers yet, oldest first: their log sequences and spans.
        self.uncovered: deque[tuple[int, SpanContext]] = deque(maxlen=MAX_LINKS)

    def _destination(
        self, subjects: Subjects, stream: str, subject: str, operation: str, kind: str
    ) -> tuple[str, Attributes]:
        """Return the name and the attributes of spans that concern the messages of a stream."""
        template = f"{subjects.root}.{stream}.{{workspace}}.{{change_set}}"
        return f"{operation} {template}", {
            **self._about,
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": subject,
            "messaging.destination.template": template,
        }

    def drop_if_idle(self, log: Traced) -> None:
        """Remove this object from `log` if nothing is being recorded."""
        if self.batch is None and self._update is None and not self.uncovered:
            log.spans = None

    # -- requests --------------------------------------------------------------------------------------------------

    def decided(self, messages: Sequence[Message], batch: DecidedBatch, taken: int, chosen: Chosen) -> None:
        """Start the spans of a batch of requests that has been decided, but is not in the log yet. `messages` begins
        with the messages of the batch; further messages are ignored."""
        self.batch = _Batch(self, messages, batch, taken, chosen) if chosen else None

    def headers_after(self, message: Message) -> dict[str, str]:
        """Return headers for messages that the request `message` causes: its reply, or a request of the server. They
        are empty unless the trace of the request is recorded."""
        if self.batch is None or not self.batch.spans:
            return {}
        span = self.batch.spans.get(message.stream_sequence)
        return {} if span is None else trace_headers(position(span))

    def answered(
        self, commit: int, messages: Sequence[Message], decided: DecidedBatch, taken: int, append: Append | None
    ) -> list[tuple[int, str]]:
        """Record the spans of a batch whose answers have been sent. `messages`, `decided` and `taken` are those given
        to `decided`, and `commit` is the log sequence of the commit with its decisions. `append` is the newest append
        to the log. Return, for each recorded request, when it was stored (Unix ns) and its trace id."""
        batch, self.batch = self.batch, None
        if batch is None:
            batch = _Batch(self, messages, decided, taken, ())
            if append is not None and append[0] == commit and decided.decisions:
                batch.append = self._earlier(append, len(decided.decisions))
        return batch.record(commit)

    def _earlier(self, append: Append, requests: int) -> AppendSpan:
        """Return the span of an append that was not recorded when it took place."""
        sequence, began, ended, commit_id, size = append
        span = AppendSpan(self.maker, *self._commits, commit_id=commit_id, requests=requests, size=size, causes=())
        ended_ns = NATS_CLOCK.now_ns() - round((clock() - ended) * NANOS)
        span.took_place(ended_ns - round((ended - began) * NANOS), ended_ns, sequence)
        return span

    # -- commits ---------------------------------------------------------------------------------------------------

    def append_begins(self, commit: Commit, size: int) -> dict[str, str]:
        """Note that a commit of `size` bytes is about to be appended.

        Return trace headers for the commit; empty unless a request or an update whose trace is recorded led to the
        commit.
        """
        self._append, self._owes = None, commit.covers is not None
        cause: _Batch | UpdateSpans | None = None
        if commit.kind is Kind.DVU:
            cause = self._update
        elif commit.requests:  # commits without requests, such as those that record attempts, belong to no trace
            cause = self.batch
        if cause is None:
            if commit.requests and commit.covers is None:  # no update is due any more
                self.uncovered.clear()
            return {}
        requests, causes = len(commit.requests), cause.causes()
        self._append = cause.append = AppendSpan(
            self.maker, *self._commits, commit_id=commit.id, requests=requests, size=size, causes=causes
        )
        return self._append.headers()

    def append_retried(self) -> None:
        """Note that the commit is about to be sent again."""
        if self._append is not None:
            self._append.retries += 1

    def append_ended(self, sequence: int) -> None:
        """Note that the commit is in the log at position `sequence`."""
        append, self._append = self._append, None
        if append is None:
            return
        append.landed(sequence)
        if self._update is not None and append is self._update.append:
            return
        if not self._owes:
            self.uncovered.clear()
        elif append.span is not None:
            self.uncovered.append((sequence, append.span.get_span_context()))

    # -- updates ---------------------------------------------------------------------------------------------------

    def update_begins(self) -> UpdateSpans:
        """Return an object that records the spans of an update, which begins now."""
        self._update = UpdateSpans(self.maker, self._about, self._update_ended)
        return self._update

    def update_planned(self, sequence: int) -> dict[str, str]:
        """Record that the update was planned at log sequence `sequence`, and therefore covers all commits up to it.

        Return the fields `trace_id` and `span_id` for the update's log events, or an empty map if no trace of these
        commits is recorded.
        """
        if self._update is None:
            return {}
        self._update.caused_by([context for at, context in reversed(self.uncovered) if at <= sequence])
        return self._update.log_fields()

    def _update_ended(self, covers: int | None) -> None:
        self._update = None
        while covers is not None and self.uncovered and self.uncovered[0][0] <= covers:
            self.uncovered.popleft()


class _Batch:
    """A batch of requests that are decided in one commit, or were decided earlier and are answered again. `spans` maps
    the sequence of each request whose trace is recorded to its span."""

    __slots__ = ("_about", "_answers", "_began", "_decided", "_maker", "_messages", "_name", "append", "spans")

    def __init__(
        self,
        change_set: ChangeSetSpans,
        messages: Sequence[Message],
        batch: DecidedBatch,
        taken: int,
        chosen: Chosen,
    ) -> None:
        self._maker = change_set.maker
        self._name, self._about = change_set.requests
        self._began = taken + NATS_CLOCK.offset
        self._messages = messages
        self._answers = batch.answers
        self._decided = batch.decisions
        self.append: AppendSpan | None = None
        self.spans: dict[int, Span] = {}
        for at, sender in chosen:
            span = self._start(messages[at], batch.answers[at][0], sender)
            if is_sampled(span):
                self.spans[messages[at].stream_sequence] = span

    def _start(self, message: Message, decision: Decision, sender: TraceContext | None) -> Span:
        attributes = {
            **self._about,
            "messaging.message.id": decision.request_id,
            "messaging.message.body.size": len(message.data),
            "rebaser.queue.seconds": max(self._began - message.timestamp_ns, 0) / NANOS,
        }
        parent: SpanContext | None = None
        links: list[SpanContext] = []
        if sender is not None:
            # In three cases, the request begins a trace of its own and only links to its sender's: the request is
            # answered again; it was redriven, perhaps days later; or it is recorded only because it was slow, and its
            # sender records nothing.
            first = decision.sequence == message.stream_sequence and not read_redrive(message.headers)
            if first and sender.sampled:
                parent = remote(sender)
            else:
                links = [remote(sender)]
        return self._maker.start(
            self._name, SpanKind.CONSUMER, attributes, began=self._began, parent=parent, links=links
        )

    def causes(self) -> list[Span]:
        """Return the spans of the requests that the commit decides."""
        decided = {decision.sequence for decision in self._decided} if self.spans else set()
        return [span for sequence, span in self.spans.items() if sequence in decided]

    def record(self, commit: int) -> list[tuple[int, str]]:
        """Record the spans, and return what `ChangeSetSpans.answered` returns. Begin a trace for each request that was
        slow and has no trace."""
        now, append = NATS_CLOCK.now_ns(), self.append
        recorded: list[tuple[int, str]] = []
        if append is not None:
            append.record()
        answered: Iterable[tuple[Message, tuple[Decision, int | None]]] = zip(
            self._messages, self._answers, strict=False
        )
        if now - self._messages[0].timestamp_ns <= self._maker.slower_than:  # it is the oldest, so none was slow
            answered = ((message, answer) for message, answer in answered if message.stream_sequence in self.spans)
        for message, (decision, earlier) in answered:
            span = self.spans.get(message.stream_sequence)
            if span is None:
                if not self._maker.request_was_slow(now, now - message.timestamp_ns):
                    continue
                span = self._start(message, decision, read_trace(message.headers))
                if append is not None and earlier is None:
                    append.record(span)
            span.set_attributes(
                {
                    "rebaser.outcome": decision.outcome.value,
                    "rebaser.commit.sequence": commit if earlier is None else earlier,
                }
            )
            if decision.outcome is not Outcome.SUCCESS:
                span.set_attribute("error.type", decision.code or decision.outcome.value)
            if decision.outcome in (Outcome.ERROR, Outcome.DEAD):
                span.set_status(Status(StatusCode.ERROR, decision.code))
            span.end(now)
            if is_sampled(span):
                recorded.append((message.timestamp_ns, f"{span.get_span_context().trace_id:032x}"))
        return recorded
