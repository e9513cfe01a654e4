"""`rebaser doctor` without a change set: it makes every check, and names those that fail."""

import json

import pytest

from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.commands import rebaser

pytestmark = pytest.mark.anyio


async def verdicts(nats_url: str, prefix: str, **settings: str) -> tuple[dict[str, str], str]:
    done = await rebaser("doctor", "--json", "--nats", nats_url, "--prefix", prefix, **settings)  # type: ignore[arg-type]
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["check"]: one["verdict"] for one in found}, done.stderr


async def test_an_installation_without_servers(nats_url: str, js: JetStream, subjects: Subjects) -> None:
    prefix = subjects.prefix
    found, told = await verdicts(nats_url, prefix)
    assert (found["nats"], found["servers"]) == ("ok", "failed")
    assert found["rights"] == "ok"
    assert "failed checks" in told
    await ensure_topology(js, subjects, TopologyOptions())
    found, told = await verdicts(nats_url, prefix)
    assert (found["streams"], found["clock"], found["python"]) == ("ok", "ok", "ok")
    assert told == "rebaser: failed checks: servers; their results say what to correct\n"


async def test_nobody_answers_and_all_else_is_looked_at(nats_url: str) -> None:
    found, told = await verdicts("nats://127.0.0.1:9", "", spark="sc://127.0.0.1:9")
    assert (found["nats"], found["spark"], found["python"]) == ("failed", "failed", "ok")
    assert told == "rebaser: failed checks: spark, nats; their results say what to correct\n"
