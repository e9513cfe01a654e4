"""The answers of the probes for each state of a server, and the addresses at which they are served."""

from dataclasses import replace
from typing import Any

import pytest

from rebaser import serving
from rebaser.ops.address import parse_address
from rebaser.ops.probes import CHECKS, Probe, judge, workload
from rebaser.runtime import context
from rebaser.settings import load_settings
from rebaser.snapshot import Snapshot
from rebaser_core.errors import ConfigError, TransientError

WELL = Snapshot("test", "serving", ack_wait=6.0, ping_interval=5.0, spark="ready")
LIVE_AND_READY, LIVE, DEAD = (200, 200), (200, 503), (503, 503)


def both(snapshot: Snapshot, **options: Any) -> tuple[int, int]:
    probes: tuple[Probe, Probe] = ("livez", "readyz")
    live, ready = (200 if judge(probe, snapshot, **options).passes else 503 for probe in probes)
    return live, ready


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, LIVE_AND_READY),
        ({"stage": "connecting"}, LIVE),
        ({"stage": "starting"}, LIVE),
        ({"stage": "draining"}, LIVE),
        ({"stage": "draining", "progress_silent": 1000.0}, LIVE),  # the loop has ended, as it should
        ({"spark": "starting"}, LIVE_AND_READY),
        ({"spark": "down: no Java"}, LIVE_AND_READY),
        ({"nats_away": 10.0}, LIVE_AND_READY),
        ({"nats_away": 10.1}, LIVE),
        ({"nats_away": 86_400.0}, LIVE),
        ({"progress_silent": 30.0}, LIVE_AND_READY),
        ({"progress_silent": 30.1}, DEAD),
        ({"progress_silent": 50.0, "ack_wait": 10.0}, LIVE_AND_READY),
        ({"progress_silent": 50.1, "ack_wait": 10.0}, DEAD),
        ({"missing": "missing in NATS: REBASER_TASKS"}, LIVE),
        ({"trouble": "NATS refused a commit: maximum bytes exceeded"}, LIVE_AND_READY),
        ({"owned": 0, "slots_used": 0}, LIVE_AND_READY),  # a spare server without work
    ],
)
def test_each_situation_has_its_answers(changes: dict[str, Any], expected: tuple[int, int]) -> None:
    assert both(replace(WELL, **changes)) == expected


@pytest.mark.parametrize(("spark", "expected"), [("ready", 200), ("starting", 503), ("down: no Java", 503)])
def test_who_needs_spark_says_so(spark: str, expected: int) -> None:
    assert both(replace(WELL, spark=spark), require={"spark"}) == (200, expected)


def test_excluded_checks_do_not_count() -> None:
    ill = replace(WELL, stage="draining", nats_away=1000.0, missing="gone")
    assert both(ill, exclude={"stage", "nats", "streams"}) == LIVE_AND_READY
    assert both(ill, exclude={"stage", "nats"}) == LIVE


def test_the_text_names_what_fails_and_the_details_all() -> None:
    away = replace(WELL, nats_away=11.0, trouble="the blob store is away")
    answer = judge("readyz", away)
    assert answer.text() == "nats: no connection for 11.0 s"
    refused = judge("readyz", replace(away, nats_problem="NATS refuses the client"))
    assert refused.text() == "nats: no connection for 11.0 s: NATS refuses the client"
    details: Any = answer.details()
    assert details["ok"] is False
    assert tuple(details["checks"]) == CHECKS
    assert details["checks"]["trouble"] == {"ok": True, "text": "the blob store is away"}
    assert judge("readyz", WELL).text() == "ok"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8421", ("0.0.0.0", 8421)),
        ("8421", ("127.0.0.1", 8421)),
        (":8421", ("127.0.0.1", 8421)),
        ("[::1]:0", ("::1", 0)),
        ("some-host:80", ("some-host", 80)),
    ],
)
def test_an_address_without_a_host_is_on_loopback(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert load_settings(http=text).http == text


@pytest.mark.parametrize("text", ["host", "host:", "host:65536", "::1:80", "http://host:80", "host:80/x", " :80"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"REBASER_HTTP.*use 127\.0\.0\.1:8421"):
        load_settings(http=text)


def test_there_is_no_port_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().http is None
    monkeypatch.setenv("REBASER_HTTP", "")
    assert load_settings().http is None


def test_the_workload_counts_change_sets_with_and_without_a_server() -> None:
    assert workload(replace(WELL, tasks_waiting=3, tasks_in_hand=40)) == {"changeSets": 43}


@pytest.mark.anyio
async def test_a_starting_server_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    process = serving._Process(load_settings(server_id="test"))
    told: list[str] = []

    class Watch:
        async def ensure(self) -> None:
            told.append(judge("readyz", process.snapshot()).text())
            if len(told) == 1:
                raise TransientError("the streams are missing")

    monkeypatch.setattr(context, "RETRY_NATS", 0.0)
    process.nats_awaited("the name is not known")
    refused = "stage: connecting\nnats: there has been no connection yet: the name is not known"
    assert judge("readyz", process.snapshot()).text() == refused
    process.streams_awaited("")
    watch: Any = Watch()
    await context._ensure_streams(watch, float("inf"), process.streams_awaited)
    assert told == ["stage: starting", "stage: starting\nstreams: the streams are missing"]
