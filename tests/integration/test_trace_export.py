"""Environment variables turn the traces of a server on, and the spans arrive at the address that they name."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import anyio
import pytest

from rebaser import __version__
from rebaser.serving import serve
from rebaser.settings import Settings
from rebaser.telemetry.tracing import tracing, wanted
from rebaser.testing.in_process import InProcessEngine
from rebaser_client import RebaserClient, Set
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events

NEVER: dict[str, Any] = {
    "server_id": "s1", "ratio": 1.0, "per_second": 1, "slower_than": 1e6, "updates_slower_than": 1e6,
}  # fmt: skip
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector:
    """Collects what is posted, as (path, body)."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, bytes]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = Thread(target=collector.server.serve_forever)
    thread.start()
    yield collector
    collector.server.shutdown()
    thread.join()
    collector.server.server_close()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.anyio
@pytest.mark.usefixtures("topology")
@pytest.mark.parametrize("status", [200, 400])
async def test_the_spans_of_a_server_arrive_at_the_endpoint(
    nats_url: str,
    subjects: Subjects,
    client: RebaserClient,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    events: Events,
    status: int,
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    monkeypatch.setattr("rebaser.telemetry.tracing.LAST_EXPORT", 60.0)
    collector.status = status
    settings = Settings(nats_url=nats_url, prefix=subjects.prefix, server_id="s1", trace_ratio=1.0)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(serve, settings, engine=InProcessEngine()))
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        group.cancel_scope.cancel()
    assert {path for path, _ in collector.posted} == {"/v1/traces"}
    body = b"".join(body for _, body in collector.posted)
    for text in ("process rebaser.requests.{workspace}.{change_set}", "service.name", "rebaser", "s1", __version__):
        assert text.replace("rebaser.requests", f"{subjects.root}.requests").encode() in body
    failed = events.named("trace_export_failed")
    assert bool(failed) is (status != 200)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not supported"),
        ({ENDPOINT: "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTLP over grpc is not supported"),
        ({ENDPOINT: "http://x:4318"}, "opentelemetry.sdk.resources is not installed: pip install 'rebaser[tracing]'"),
        ({ENDPOINT: "http://x:4318", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "max_queue_size must be a positive integer"),
        (
            {ENDPOINT: "http://x:4318", "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER": "none_such"},
            "Requested component 'none_such' not found",  # a RuntimeError
        ),
    ],
)
async def test_a_server_that_cannot_make_traces_says_why_and_runs(
    environment: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if "is not installed" in reason:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    async with tracing(**NEVER) as traces:
        assert traces is None
    [event] = events.named("traces_off")
    assert event["reason"].startswith(reason)


def test_an_export_without_end_does_not_keep_the_process() -> None:
    program = """
import threading, anyio
from opentelemetry.sdk.trace import TracerProvider
from rebaser.telemetry import tracing

TracerProvider.shutdown = lambda self: threading.Event().wait()
tracing.LAST_EXPORT = 0.01

async def main():
    limits = {"per_second": 1, "slower_than": 1.0, "updates_slower_than": 1.0}
    async with tracing.tracing(server_id="s1", ratio=0.0, **limits) as traces:
        assert traces is not None

anyio.run(main)
"""
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "console"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


@pytest.mark.anyio
async def test_no_request_is_slower_than_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("REBASER_TRACE_SLOWER_THAN", "inf")
    slower_than = Settings().trace_slower_than
    async with tracing(**NEVER | {"slower_than": slower_than}) as traces:
        assert traces is not None
        maker = traces.maker
        assert maker.slower_than > 2**63
        assert not maker.request_was_slow(0, 2**63)


@pytest.mark.anyio
async def test_without_an_endpoint_there_are_none(events: Events) -> None:
    async with tracing(**NEVER) as traces:
        assert traces is None
    assert not events.entries


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({ENDPOINT: "http://x:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://x:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "", ENDPOINT: "http://x:4318"}, True),
        ({"OTEL_SDK_DISABLED": "TRUE", ENDPOINT: "http://x:4318"}, False),
    ],
)
def test_the_variables_of_opentelemetry_turn_them_on(environment: dict[str, str], on: bool) -> None:
    assert wanted(environment) is on


def test_servers_and_clients_import_nothing_of_it_by_themselves() -> None:
    program = "import sys, rebaser.serving, rebaser_client.client; print('opentelemetry' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
