"""Keeps the spans of clients and servers in this process in memory."""

from typing import Any

import anyio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rebaser.telemetry.catalogue import REQUEST_SECONDS
from rebaser.telemetry.span_maker import SpanMaker
from rebaser.telemetry.spans import ChangeSetSpans, ServerSpans
from rebaser_client.jetstream import JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages.headers.traces import TraceContext, trace_headers
from rebaser_core.streams.subjects import Subjects
from tests.support.poison import KEY

NEVER = 1e6  # seconds

ENQUEUE = "enqueue rebaser"
STORE, PROCESS, APPEND = "publish requests", "process requests", "publish commits"


class Recorder:
    """Keeps each span that has ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def server(self, **limits: float) -> ServerSpans:
        """Return the tracing of a server whose spans are kept here. `limits` are arguments of `SpanMaker`."""
        given = {"ratio": 0.0, "per_second": NEVER, "slower_than": NEVER, "updates_slower_than": NEVER} | limits
        maker = SpanMaker(self.provider.get_tracer("rebaser"), **given)
        return ServerSpans(maker)

    def change_set(self, **limits: float) -> ChangeSetSpans:
        """Return the spans of a change set of such a server."""
        return ChangeSetSpans(self.server(**limits).maker, Subjects(), KEY)

    def spans(self, name: str | None = None) -> list[Any]:
        """Return the ended spans, all or those with one name, in the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if name in (None, short(span))]

    def one(self, name: str) -> Any:
        [span] = self.spans(name)
        return span

    def parents(self) -> set[tuple[str, str | None]]:
        """Return each span with its parent, by their names. None stands for no parent, `?` for a parent that is not
        kept here."""
        names = {span.context.span_id: short(span) for span in self.spans()}
        return {
            (short(span), None if span.parent is None else names.get(span.parent.span_id, "?")) for span in self.spans()
        }


def short(span: Any) -> str:
    """Return the name of a span, without the names in its subject."""
    operation, _, subject = str(span.name).partition(" ")
    if "{workspace}" not in subject:
        return str(span.name)
    assert subject.endswith(".{workspace}.{change_set}")
    return f"{operation} {subject.split('.')[-3]}"


def sender(number: int, *, flags: int = 1) -> TraceContext:
    """Return a position in a separate trace."""
    return TraceContext(0xABC0000 + number, 0xDEF0000 + number, flags)


def headers_of(number: int, *, flags: int = 1) -> dict[str, str]:
    return trace_headers(sender(number, flags=flags))


async def until(recorder: Recorder, name: str, count: int = 1) -> None:
    with anyio.fail_after(120):
        while len(recorder.spans(name)) < count:  # noqa: ASYNC110 - spans end without a word
            await anyio.sleep(0.01)


async def newest_commit(js: JetStream, subjects: Subjects, key: ChangeSetKey = KEY) -> dict[str, str]:
    stored = await js.last(subjects.commits_stream, subjects.commits(key))
    assert stored is not None
    return stored.headers


def exemplars() -> set[str]:
    """Return the traces that a scrape names as examples of the time until the answer."""
    [sample] = REQUEST_SECONDS.samples()
    return {one.trace_id for one in sample.exemplars.values()}
