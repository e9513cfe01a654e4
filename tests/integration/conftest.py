"""Fixtures that many tests of this folder use: a client, an engine that computes at once, connections that lose
messages."""

from collections.abc import AsyncIterator, Iterator

import pytest

from rebaser.change_set.lease import Lease
from rebaser.doctor import examination
from rebaser.embedded.nats import EmbeddedNats
from rebaser.sweeper.sweeper import Sweeper
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.branch_owners import OwnersOfBranch
from tests.support.nats_proxy import Proxy, proxied
from tests.support.owned_log import Log, OpenLog
from tests.support.owners import Engine, serving
from tests.support.patient import Patient
from tests.support.sweeps import new_sweeper
from tests.support.traces import Recorder
from tests.support.workspace import edit


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


@pytest.fixture
def engine() -> Engine:
    """An engine that computes at once."""
    engine = Engine()
    engine.go.set()
    return engine


@pytest.fixture
async def proxy(anyio_backend: str, nats_server: EmbeddedNats) -> AsyncIterator[Proxy]:
    async with proxied(nats_server.port) as proxy:
        yield proxy


@pytest.fixture
async def lossy(proxy: Proxy) -> AsyncIterator[JetStream]:
    """JetStream through `proxy`."""
    async with Connection.connect(proxy.url) as connection:
        yield JetStream(connection)


@pytest.fixture
def open_log(js: JetStream, subjects: Subjects) -> OpenLog:
    """A function that opens the log as one more owner."""
    return lambda: Log(js, subjects)


@pytest.fixture
def patient(
    js: JetStream, subjects: Subjects, nats_url: str, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> Patient:
    """A change set whose log a test damages, with the calls of the doctor, who does not wait for missing blobs."""
    monkeypatch.setattr(examination, "BLOB_PAUSE", 0.0)
    return Patient(js, subjects, nats_url, client)


@pytest.fixture
async def owners(js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine) -> OwnersOfBranch:
    """A branch that edited `a`, and whose target then edited `a` and `b`."""
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Set("b", 1))
        await client.create_branch("ws", "fix")
        await edit(client, "fix", Set("a", 10))
    owners = OwnersOfBranch(js, subjects)
    await owners.edit_target(Set("a", 2), Set("b", 2))
    return owners


@pytest.fixture
def sweeper(js: JetStream, subjects: Subjects, topology: TopologyOptions) -> Sweeper:
    return new_sweeper(js, subjects)


@pytest.fixture
def no_ack_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redeliver the task of an owner that ends without a word at once, as if its ack wait of six seconds were over."""
    publish = Lease.publish_again

    async def publish_again(self: Lease) -> None:
        await publish(self)
        await self.task.nak(0.0)

    monkeypatch.setattr(Lease, "publish_again", publish_again)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def traced_program(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that has set up OpenTelemetry, which is possible only once in a process."""
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: recorder.provider)
    return iter(())
