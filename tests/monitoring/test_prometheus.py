"""A real Prometheus scrapes two servers through a rolling restart, with the rules and the queries that we ship."""

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import yaml  # type: ignore[import-untyped]
from anyio import to_thread

from rebaser.embedded.nats import embedded_nats
from rebaser_client import Derive, RebaserClient, Set
from tests.monitoring.test_alerts import RULES
from tests.monitoring.test_dashboard import QUERIES, filled
from tests.support.fleet import launched
from tests.support.http import until
from tests.support.ports import free_ports

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus; .ci/run gets it"),
]

ENOUGH = 240.0  # seconds; a bound against hanging
TIMEOUT = 0.45  # seconds; a scrape that took longer timed out
COUNTERS = '{__name__=~"rebaser_.*_(total|count|sum|bucket)"}'


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    async def ask(self, path: str, **fields: object) -> list[Any]:
        url = f"{self._url}{path}?{urllib.parse.urlencode(fields)}"

        def fetch() -> Any:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]["result"]

        return cast("list[Any]", await to_thread.run_sync(fetch))

    async def query(self, query: str) -> list[Any]:
        return await self.ask("query", query=query)

    async def holds(self, query: str) -> None:
        """Return when the query has a result."""
        with anyio.move_on_after(ENOUGH):
            while True:
                try:
                    if await self.query(query):
                        return
                except OSError:  # Prometheus is starting
                    pass
                await anyio.sleep(0.2)
        pytest.fail(f"this query has no result: {query}")


@asynccontextmanager
async def prometheus(folder: Path, port: int, targets: list[int]) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes the targets twice a second, and evaluates the rules every second."""
    config = folder / "prometheus.yaml"
    scraped = {"job_name": "rebaser", "static_configs": [{"targets": [f"127.0.0.1:{target}" for target in targets]}]}
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump({"global": every, "rule_files": [str(RULES)], "scrape_configs": [scraped]}))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    async with await anyio.open_process(command, stdout=None, stderr=None) as process:
        try:
            yield Prometheus(port)
        finally:
            with anyio.CancelScope(shield=True):
                process.terminate()
                await process.wait()


def server(url: str, port: int) -> Any:
    """Start a server that computes derived values in its own process, so that it need not wait for Spark."""
    return launched(
        url, f"on-{port}", module="tests.support.sparkless_server", http=str(port), log_level="warning", ack_wait=3
    )


@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=(pytest.mark.long, pytest.mark.timeout(2400)))])
async def test_a_rolling_restart_leaves_no_gap(rounds: int, tmp_path: Path) -> None:
    """At each time, a server is ready. Counters decrease only when their server restarts. Every query has a result."""
    port, *targets = free_ports(3)
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(embedded_nats(tmp_path / "nats"))
        scraper = await stack.enter_async_context(prometheus(tmp_path, port, targets))
        client = await stack.enter_async_context(RebaserClient.connect(nats.url))
        running = {target: await stack.enter_async_context(server(nats.url, target)) for target in targets}
        for target in targets:
            await until(target, "/readyz", 200)
        await scraper.holds("count(rebaser_ready == 1) == 2")
        restarts: dict[int, list[tuple[float, float]]] = {target: [] for target in targets}
        for turn in range(rounds):
            for target in targets:
                edits: list[Set | Derive] = [Set("a", turn), Derive("d", "sum", {"of": ["a"]})]
                await client.enqueue_updates_with_reply("shop", f"cs-{target}", edits, wait="derived")
                began = time.time()
                await running[target].terminate()
                running[target] = await stack.enter_async_context(server(nats.url, target))
                await until(target, "/readyz", 200)
                restarts[target].append((began, time.time()))
                one = f'{{instance="127.0.0.1:{target}"}}'
                await scraper.holds(f"changes(process_start_time_seconds{one}[1h]) == {turn + 1}")
                await scraper.holds(f"rebaser_ready{one} == 1")
        await scraper.holds("count(count_over_time(process_start_time_seconds[1h]) > 2) == 2")
        await scraper.holds("count(count_over_time(rebaser_ready[1h]) > 5) == 2")
        [most] = await scraper.query('max(count by (instance) (last_over_time({__name__=~"rebaser_.+"}[1h])))')
        assert 300 < float(most["value"][1]) <= 900, "the series of a server stay few, whatever it did"
        for query in QUERIES:
            # In an hour, because rates need two scrapes that answered, and a busy machine may not answer for a minute.
            await scraper.holds(filled(query).replace("[1m]", "[1h]"))
        await check_no_gap(scraper, restarts)
        await check_counters(scraper)
        fired = await scraper.query('count_over_time(ALERTS{alertstate="firing", severity="page"}[1h])')
        assert [one["metric"]["alertname"] for one in fired] == []


async def check_no_gap(scraper: Prometheus, restarts: dict[int, list[tuple[float, float]]]) -> None:
    """Check that a server answers each scrape and is ready, except while it restarts, and that restarts do not overlap.

    A scrape that times out on a busy machine is ignored: a server that is down refuses connections at once.
    """
    every = sorted(one for listed in restarts.values() for one in listed)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(every))
    for target, listed in restarts.items():
        one = f'{{instance="127.0.0.1:{target}"}}[1h]'
        [took] = await scraper.query(f"scrape_duration_seconds{one}")
        seconds = {at: float(value) for at, value in took["values"]}
        [ready] = await scraper.query(f"rebaser_ready{one}")
        assert len(ready["values"]) > 5
        first = next(at for at, value in ready["values"] if value == "1")  # its first start may take several scrapes
        for metric in ("up", "rebaser_ready"):
            [samples] = await scraper.query(f"{metric}{one}")
            for at, value in samples["values"]:
                if at > max(seconds):  # scraped after the query above
                    continue
                restarting = any(began <= at + seconds[at] and at <= ended for began, ended in listed)
                assert value == "1" or restarting or at <= first or seconds[at] > TIMEOUT, (metric, target, at)


async def check_counters(scraper: Prometheus) -> None:
    """Check that where a counter decreases, its process has another start time."""
    starts = {
        one["metric"]["instance"]: dict(one["values"]) for one in await scraper.query("process_start_time_seconds[1h]")
    }
    found = await scraper.query(f"{COUNTERS}[1h]")
    assert len(found) > 500
    back = 0
    for one in found:
        instance = starts[one["metric"]["instance"]]
        for (before, was), (after, now) in pairwise(one["values"]):
            if float(now) < float(was):
                assert instance[before] != instance[after], one["metric"]
                back += 1
    assert back > 0
