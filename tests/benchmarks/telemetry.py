"""Measures the cost of metrics and traces: the same requests to a server with both, which is scraped and sends spans to
a collector, and to a server without either.

    python -m tests.benchmarks.telemetry [--phases one,many] [--seconds 3] [--rounds 5] [--traces 0.01] [--json]

Both servers run side by side, each with streams of its own, and are measured in turn. `cpu_server` is processor time in
µs per request; the ratios are medians over the rounds. Aim: at least 0.98 of the requests/s without them.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from tests.benchmarks.requests import NO_SPARK, phases, process, wait_for_server

SCRAPE = 5.0  # seconds between scrapes and probes; Prometheus and Kubernetes ask less often by default
WITHOUT = "off"


def serve_without() -> None:
    """Run `rebaser serve` with feeds that do nothing."""
    from rebaser.telemetry import feeds

    feeds.queue_taken = lambda messages: messages
    for name in ("requests_decided", "requests_answered", "commit_appended", "loop_was_late"):
        setattr(feeds, name, lambda *_: None)
    from rebaser.cli import main

    main()


async def scrapes(port: int) -> None:
    def ask() -> None:
        for path in ("metrics", "livez", "readyz"):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
                answer.read()

    while True:
        await asyncio.to_thread(ask)
        await asyncio.sleep(SCRAPE)


class Collector(BaseHTTPRequestHandler):
    """Takes spans, and counts their bytes."""

    received = 0

    def do_POST(self) -> None:
        Collector.received += len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def traced(ratio: float) -> Iterator[dict[str, str]]:
    """Run a collector. Yields the variables for a server that sends it traces of that share of the requests."""
    if not ratio:
        yield {}
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "REBASER_TRACE_RATIO": str(ratio)}
        server.shutdown()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[Any]] = {"on": [], WITHOUT: []}
    slots = {"REBASER_CONCURRENCY": "10000", "REBASER_QUIESCENT_PERIOD": "600"}
    with tempfile.TemporaryDirectory() as folder, traced(options.traces) as variables:
        async with embedded_nats(Path(folder)) as nats:
            given = ("serve", "--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error", "--prefix")
            with (
                process("-m", "rebaser", *given, "on", "--http", str(options.port), **slots, **variables) as fed,
                process("-m", "tests.benchmarks.telemetry", WITHOUT, *given, WITHOUT, **slots) as bare,
            ):
                scraping = asyncio.create_task(scrapes(options.port))
                for name in found:
                    await wait_for_server(nats.url, warm=False, prefix=name)
                for number in range(options.rounds):
                    for name in (("on", WITHOUT), (WITHOUT, "on"))[number % 2]:
                        async with RebaserClient.connect(nats.url, prefix=name) as client:

                            async def call(key: str, client: RebaserClient = client) -> int:
                                await client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], timeout=30)
                                return 0

                            server = fed if name == "on" else bare
                            pids = {"client": os.getpid(), "nats": nats.pid, "server": server.pid}
                            found[name].append(await phases(call, options, name, pids))
                scraping.cancel()
    return summary(found)


def summary(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Return, for each phase, the medians of both servers, and the median of the rounds' ratios of on to off."""
    table: dict[str, Any] = {}
    for phase in found["on"][0]:
        pairs = [(on[phase], off[phase]) for on, off in zip(found["on"], found[WITHOUT], strict=True)]
        for figure in ("per_s", "p50_ms", "cpu_server"):
            table[f"{phase} {figure}"] = {
                "on": round(statistics.median(on[figure] for on, _ in pairs), 3),
                WITHOUT: round(statistics.median(off[figure] for _, off in pairs), 3),
                "ratio": round(statistics.median(on[figure] / off[figure] for on, off in pairs), 3),
            }
    return table


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--phases", type=lambda text: text.split(","), default=["one", "many"])
    out.add_argument("--keys", type=int, default=100)
    out.add_argument("--seconds", type=float, default=3.0)
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--traces", type=float, default=0.01, help="share of the requests that are recorded; 0: no traces")
    out.add_argument("--port", type=int, default=18421)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
    else:
        for name, row in found.items():
            print(f"{name:16}" + "  ".join(f"{key} {value:10g}" for key, value in row.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == [WITHOUT]:
        sys.argv = ["rebaser", *sys.argv[2:]]
        serve_without()
    else:
        main()
