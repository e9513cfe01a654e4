"""Scrapes a server process after real requests, with the parser of the Prometheus client."""

from pathlib import Path

import anyio
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from rebaser.embedded.nats import embedded_nats
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.errors import RequestConflicts, RequestRejected
from tests.support.fleet import NO_SPARK, launched
from tests.support.http import ask, until

pytestmark = pytest.mark.anyio

SECRET = "open-sesame"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(port: int) -> Series:
    text = (await ask(port, "/metrics")).body
    assert SECRET not in text
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def of(series: Series, name: str, **labels: str) -> float:
    return series[f"rebaser_{name}", frozenset(labels.items())]


async def test_requests_show_in_a_scrape(tmp_path: Path, unused_port: int) -> None:
    """No name of a user's workspace or change set appears, and the number of series does not grow."""
    async with (
        embedded_nats(tmp_path / "nats") as nats,
        launched(nats.url, "one", spark=NO_SPARK, http=str(unused_port), log_level="error"),
        RebaserClient.connect(nats.url) as client,
    ):
        port = unused_port
        await until(port, "/readyz", 200)
        first = await scrape(port)
        for number in range(5):
            await client.enqueue_updates_with_reply(SECRET, SECRET, [Set(SECRET, number)], request_id=f"r{number}")
        with pytest.raises((RequestConflicts, RequestRejected)):
            await client.enqueue_updates_with_reply(SECRET, SECRET, [Set(SECRET, 9)], expect_at=1)
        await client.enqueue_updates_with_reply(SECRET, SECRET, [Derive("d", "sum", {"of": [SECRET]})])
        with anyio.fail_after(120):
            while of(last := await scrape(port), "request_seconds_count") < 7:
                pass  # the last answer is counted after it was sent
        exact = (await ask(port, "/metrics", head="accept: application/openmetrics-text; version=1.0.0\r\n")).body
    assert list(openmetrics.text_string_to_metric_families(exact))
    assert first.keys() == last.keys()
    ours = {key for key in last if key[0].startswith("rebaser_")}
    assert len(ours) <= 900
    assert of(last, "requests_decided_total", outcome="success") == 6
    assert sum(of(last, "requests_decided_total", outcome=one) for one in ("conflicts", "error", "dead")) == 1
    assert of(last, "request_seconds_count") == of(last, "request_queue_seconds_count") == 7
    assert of(last, "batch_requests_sum") == 7
    assert of(last, "append_seconds_count", kind="requests") == of(last, "batch_requests_count") > 0
    assert of(last, "change_sets_owned", phase="active") == of(last, "load_seconds_count") == 1
    assert of(last, "values_held") == 2
    assert of(last, "commit_bytes_total", part="inline") > 100
    assert of(last, "nats_api_seconds_count", result="done") > of(first, "nats_api_seconds_count", result="done") > 0
    assert sum(of(last, "change_sets_dvu", state=one) for one in ("owed", "running", "waiting")) == 1
    assert of(last, "debt_age_seconds_max") > 0
    assert of(last, "nats_connected") == of(last, "ready") == 1
    assert of(last, "spark_up") == of(last, "draining") == 0
    # Counted although it is not logged.
    assert of(last, "log_events_total", event="change_set_owned", level="info") == 1
    assert of(last, "stream_messages", stream="sweep") >= 0
    assert of(last, "loop_lag_seconds_count") > 0
    assert last["process_cpu_seconds_total", frozenset()] > 0
