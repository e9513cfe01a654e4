"""Runs the same cases against the model and a real nats-server, through the JetStream layer, so that the model stays
true."""

import random
from typing import Any

import anyio
import pytest

from rebaser_client.jetstream import ApiError, Connection, JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND
from tests.simulation.conformance import delivery, pulling, streams  # noqa: F401 - they add to CASES
from tests.simulation.conformance.cases import CASES, Case
from tests.simulation.environment import replaced
from tests.simulation.loop import Process, SimLoop
from tests.simulation.model.server import NatsModel
from tests.simulation.network import Network, NoFaults, jitter

BOUND = 120  # seconds; a bound against hanging


def run_on_model(function: Case) -> None:
    loop = SimLoop()
    rng = random.Random(function.__name__)
    model = NatsModel(loop, api_delay=lambda: rng.random() * 0.001)
    network = Network(loop, model, jitter(rng, 0.0002, 0.002), NoFaults())
    process = Process(loop, "test")
    with replaced(loop, network, 1, engine=lambda *_: None, log=lambda *_: None):
        try:
            loop.run_until_complete(process.start(_connected(function, "nats://model:4222", "conf")))
        finally:
            loop.close()


async def _connected(function: Case, url: str, name: str) -> None:
    with anyio.fail_after(BOUND):
        async with Connection.connect(url, name="conformance") as connection:
            js = JetStream(connection)
            try:
                await function(js, name)
            finally:
                try:
                    await js.call(f"STREAM.DELETE.{name}")
                except ApiError as error:
                    if error.err_code != STREAM_NOT_FOUND:
                        raise


@pytest.mark.parametrize("function", CASES, ids=[one.__name__ for one in CASES])
class TestConformance:
    def test_model(self, function: Case) -> None:
        run_on_model(function)

    def test_server(self, function: Case, nats_url: str, subjects: Any) -> None:
        anyio.run(_connected, function, nats_url, subjects.prefix)
