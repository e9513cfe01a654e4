"""Measures what metrics and traces cost the server. They are switched on and off between bursts of requests.

    python -m tests.benchmarks.telemetry [--phases one,many,keys] [--seconds 60] [--traces 0.01] [--parts] [--json]

The owners run in this process. A stand-in for nats-server, in the same process, answers them through a socket; the time
that it takes is not measured. Every 128 bursts of requests, of which the first 64 are not measured, something else is
switched on, in random order: both (`on`); neither (`off`); neither again (`again`), which shows how much of a
difference this measurement finds where there is none; or both, with one recorded request in each batch. `--parts` adds
`metrics` and `traces`, each without the other.

- `one`: one change set, one request in a burst
- `many`: one change set, 32 requests in a burst, which share one commit, as 64 requests in flight do
- `keys`: 1,000 change sets, 8 requests in a burst, each with a commit of its own

For each phase and kind, the table has the processor time in µs per request, system calls included, and the ratio of the
throughput that it allows to that of `off`, with an interval of 95 % (bootstrap). The row `on` contains what the
recorded share `--traces` of the requests costs, but at most `--per-second` of them, and what sending their spans costs.
Its ratio also contains a scrape of the metrics every 15 s, and two probes every 10 s. Aim: at least 0.98.

The processor time of a kind is the mean of the cheapest tenth of its bursts, because other programs slow down the rest.
On a busy machine, use more `--seconds` until the interval of `again` is narrow enough.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from unittest import mock

import anyio
import numpy as np
import structlog
import uvloop

from rebaser.change_set.owner import Owner
from rebaser.ops.port import ops_port
from rebaser.owner_view import take_census
from rebaser.runtime.python_gc import short_collections
from rebaser.settings import Settings
from rebaser.snapshot import STREAMS, Census, Snapshot, StreamUsage
from rebaser.telemetry.tracing import tracing
from rebaser_client.jetstream import Connection
from rebaser_core.ids import ChangeSetKey
from tests.benchmarks.nats_here import NatsHere
from tests.benchmarks.stages import make_context, own
from tests.benchmarks.switched import Switch

BURST = {"one": 1, "many": 32, "keys": 8}
ON, OFF, AGAIN, RECORDED = "on", "off", "again", "recorded"
BOTH, NEITHER = {"metrics": True, "traces": True}, {"metrics": False, "traces": False}
WAYS: dict[str, dict[str, Any]] = {ON: BOTH, OFF: NEITHER, AGAIN: NEITHER, RECORDED: {**BOTH, "recorded": 0}}
PARTS = {"metrics": {**NEITHER, "metrics": True}, "traces": {**NEITHER, "traces": True}}
# Seconds between requests to the ops port, by path, as Prometheus and Kubernetes send them by default.
ASKED = {"metrics": 15.0, "livez": 10.0, "readyz": 10.0}
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
EXPORTER = "OtelBatch"  # how the name of the thread that sends spans begins
# After a switch, Python first has to specialize its byte code again, which a server does only once. So as many bursts
# are not measured.
IN_A_ROW = 64
NOTHING = 1e-12  # a ratio that records nothing, and costs the other requests what any ratio does
SAMPLES = 1000
Bursts = Mapping[str, Any]  # for each kind, an array of the µs per request of its bursts


class Socket:
    """The end of NATS of a connection. It stands in for the transport of `NatsHere`."""

    def __init__(self, listener: socket.socket) -> None:
        self._socket, _ = listener.accept()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receive(b'INFO {"version":"2.15.1","headers":true,"max_payload":1048576}\r\n')

    def close(self) -> None:
        self._socket.close()

    def receive(self, data: bytes) -> None:
        self._socket.sendall(data)

    @property
    def sent(self) -> list[bytes]:
        with suppress(BlockingIOError):
            return [self._socket.recv(1 << 22)]
        return []

    @sent.setter
    def sent(self, _: list[bytes]) -> None: ...


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
def collector() -> Iterator[str]:
    """Run a collector of spans. Yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Observed(NamedTuple):
    """What the ops port shows: a server with `owners`."""

    owners: Sequence[Owner]

    def snapshot(self) -> Snapshot:
        usage = {name: StreamUsage(1, 1, 0.1) for name in STREAMS}
        return Snapshot("bench", "serving", 6.0, 5.0, streams=usage, slots=10_000, slots_used=len(self.owners))

    def census(self) -> Census:
        return take_census(self.owners, (), (), time.monotonic())


class System(NamedTuple):
    nats: NatsHere
    switch: Switch
    keys: Sequence[ChangeSetKey]
    port: int

    async def burst(self, count: int) -> float:
        """Make `count` requests at once, and return the µs of processor time for each."""
        nats, used, late = self.nats, 0, False
        chosen = random.sample(self.keys, count) if len(self.keys) > 1 else [*self.keys] * count
        wanted = nats.replies + count
        nats.transport.receive(b"".join([nats.delivery(key) for key in chosen]))
        while not late:
            late = nats.replies >= wanted  # requests are deleted after the last answer
            began = time.thread_time_ns()
            for _ in range(3):
                await asyncio.sleep(0)
            used += time.thread_time_ns() - began
            nats.respond()
        return used / 1000 / count

    async def asked(self, times: int) -> dict[str, float]:
        """Return the milliseconds of processor time that a request to the ops port takes, by path."""
        found = {}
        for path in ASKED:
            took = []
            for _ in range(times):
                before = time.process_time()
                took.append(1000 * (-before - await asyncio.to_thread(self._ask, path) + time.process_time()))
            found[path] = round(statistics.median(took), 3)
        return found

    def _ask(self, path: str) -> float:
        """Send a request, and return the seconds of processor time that this took here."""
        began = time.thread_time()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", headers={"Accept": ACCEPT})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.read()
        return time.thread_time() - began


@asynccontextmanager
async def system(keys: Sequence[ChangeSetKey]) -> AsyncIterator[System]:
    """Start an owner of each of `keys`."""
    settings = Settings(quiescent_period=86_400, checkpoint_bytes=2**40, server_id="bench")
    nats, owners = NatsHere(), list[Owner]()
    with collector() as spans_to, socket.create_server(("127.0.0.1", 0)) as listener, Switch() as switch:
        settings = settings.model_copy(update={"nats_url": f"nats://127.0.0.1:{listener.getsockname()[1]}"})
        listener.setblocking(False)
        variables = mock.patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": spans_to})
        with variables:
            limits = {"per_second": 10**9, "slower_than": 1e9, "updates_slower_than": 1e9}
            tracer = tracing(server_id="bench", ratio=NOTHING, **limits)
            async with tracer as traces, anyio.create_task_group() as group:
                answering = anyio.CancelScope()
                group.start_soon(_answer_always, nats, listener, answering)
                async with (
                    Connection.connect(settings.nats_url) as connection,
                    ops_port("127.0.0.1:0", Observed(owners)) as port,
                ):
                    owners += await own(keys, replace(make_context(settings, connection), traces=traces), group)
                    answering.cancel()
                    yield System(nats, switch, keys, port)
                    group.cancel_scope.cancel()
        nats.transport.close()


async def _answer_always(nats: NatsHere, listener: socket.socket, answering: anyio.CancelScope) -> None:
    with answering:
        while True:
            await asyncio.sleep(0.001)
            if hasattr(nats, "transport"):
                nats.respond()
            else:
                with suppress(BlockingIOError):
                    nats.transport = Socket(listener)  # type: ignore[assignment] # has all that is used


async def measure_phase(name: str, options: argparse.Namespace) -> dict[str, Any]:
    count, ways = BURST[name], WAYS | (PARTS if options.parts else {})
    found: dict[str, list[float]] = {way: [] for way in ways}
    keys = [ChangeSetKey("bench", f"cs{number}") for number in range(options.keys if name == "keys" else 1)]
    with short_collections():  # as in a server
        async with system(keys) as running:
            began = time.perf_counter()
            while time.perf_counter() - began < options.seconds or len(found[OFF]) < 8:
                for way in random.sample(list(ways), len(ways)):
                    running.switch.set(**ways[way])
                    for number in range(2 * IN_A_ROW):
                        burst = await running.burst(count)
                        if number >= IN_A_ROW:
                            found[way].append(burst)
            sending = _sending() / 1000 / running.switch.recorded
            asked = await running.asked(options.scrapes)
    rows = {way: np.array(figures[len(figures) // 10 :]) for way, figures in found.items()}  # caches fill at first
    in_batch = count if name == "many" else 1
    return summary(rows, in_batch, (options.traces, options.per_second), sending, asked)


def _sending() -> int:
    """Return the nanoseconds of processor time that sending spans has used."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(EXPORTER)]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]
    return sum(map(time.clock_gettime_ns, clocks))


def summary(
    bursts: Bursts, in_batch: int, traces: tuple[float, float], sending: float, asked: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures of a phase. `in_batch` is the number of requests in a batch. `traces` are the share of the
    requests that are recorded, and their maximum number per second. `sending` are the µs that sending the spans of a
    request takes. `asked` are the milliseconds that a request to the ops port takes, by path."""
    share, per_second = traces
    left = 1.0 - sum(asked[path] / 1000 / seconds for path, seconds in ASKED.items())

    def recorded(rows: Bursts) -> Any:
        return in_batch * (cheap(rows[RECORDED]) - cheap(rows[ON])) + sending

    def cost(way: str, rows: Bursts) -> Any:
        each = cheap(rows[way])
        if way != ON:
            return each
        # At the highest possible throughput, the limit per second may allow fewer recorded requests.
        busy = min(per_second * recorded(rows) / 1e6, 0.9)
        return min(each + share * recorded(rows), each / (1.0 - busy))

    def ratio(way: str, rows: Bursts) -> float:
        return float(cost(OFF, rows) / cost(way, rows) * (left if way == ON else 1.0))

    generator, count = np.random.default_rng(1), len(bursts[OFF])
    drawn = [generator.integers(count, size=count) for _ in range(SAMPLES)]
    samples = [{way: rows[at] for way, rows in bursts.items()} for at in drawn]
    ways = {way: {"cpu": round(float(cost(way, bursts)), 2)} for way in bursts if way != RECORDED}
    for way in ways:
        low, high = np.quantile([ratio(way, one) for one in samples], (0.025, 0.975))
        ways[way] |= {"ratio": round(ratio(way, bursts), 4), "low": round(low, 4), "high": round(high, 4)}
    about = {"bursts": count, "recorded": round(float(recorded(bursts)), 1), "sending": round(sending, 1)}
    return {**about, "asked": dict(asked), "ways": ways}


def cheap(rows: Any) -> Any:
    """Return the mean of the cheapest tenth."""
    tenth = max(len(rows) // 10, 1)
    return np.partition(rows, tenth - 1)[:tenth].mean()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    # The stand-in sends no heartbeats. With a tick this short, none counts as missed.
    with mock.patch("rebaser_client.jetstream.ordered.consumer.TICK", 1e-9):
        return {name: uvloop.run(measure_phase(name, options)) for name in options.phases}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--phases", type=lambda text: text.split(","), default=list(BURST))
    out.add_argument("--keys", type=int, default=1000)
    out.add_argument("--seconds", type=float, default=60.0, help="for each phase")
    out.add_argument("--scrapes", type=int, default=30, help="how many scrapes and probes are measured")
    out.add_argument("--traces", type=float, default=0.01, help="share of the requests that are recorded")
    most = Settings().trace_per_second
    out.add_argument(
        "--per-second", type=float, default=most, help="how many requests are recorded in a second at most"
    )
    out.add_argument("--parts", action="store_true", help="measure metrics and traces also apart")
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return
    for name, phase in found.items():
        asked = ", ".join(f"{path} {took:g} ms" for path, took in phase["asked"].items())
        print(f"{name}: {phase['bursts']} bursts of each kind; {asked}")
        print(
            f"  a recorded request costs {phase['recorded']:g} µs more, {phase['sending']:g} of them to send its spans"
        )
        for way, row in phase["ways"].items():
            print(f"  {way:8} {row['cpu']:8.2f} µs  {row['ratio']:.4f} ({row['low']:.4f} to {row['high']:.4f})")


if __name__ == "__main__":
    main()
