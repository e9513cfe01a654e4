"""`rebaser gc` as a user runs it, on an embedded Spark of its own."""

import json
import sys

import anyio
import pytest

from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.usefixtures("topology")]


async def test_a_run_is_told_as_json_and_is_in_the_log(nats_url: str, js: JetStream, subjects: Subjects) -> None:
    await open_blobs(None, js, subjects.blobs_bucket).put(b"garbage")
    place = ["--nats", nats_url, "--prefix", subjects.prefix]

    async def run(*arguments: str) -> str:
        done = await anyio.run_process([sys.executable, "-m", "rebaser", *arguments], check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    told = json.loads(await run("gc", *place, "--json"))
    assert (told["blobs"], told["candidates"], told["trashed"], told["graceSeconds"]) == (1, 1, 0, 86_400.0)
    logged = await run("tail", *place, "--all", "--json", "--", "-", "gc")
    assert json.loads(logged)["kind"] == "gc"
