"""Probes whether the NATS user of this command has the permissions that clients and servers need.

Invariant: a probe has no effect. It is a read, or a request that must fail after NATS has checked the permissions: a
message that its stream has to refuse, an API call without the required body, or a call about a consumer that does not
exist. Operations that cannot be requested without taking effect (purging, taking tasks, unpinning, publishing progress)
are not probed.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import anyio

from rebaser_client.jetstream import Connection, JetStream, NoAnswerError, NoRespondersError
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import SWEEP_CONSUMER, TASKS_CONSUMER

ABSENT = "rebaser-doctor"  # the name of a consumer, a stream, a workspace and a change set, none of which exists
REFUSED = {"Nats-Expected-Stream": ABSENT}
TIMEOUT = 2.0  # seconds for each answer
MAX_CONCURRENT = 16


@dataclass(frozen=True, slots=True)
class Probe:
    """An attempt to publish `body` to `subject` or, if `listen` is set, to subscribe to it.

    `refused` is true if the message has a header that makes its stream refuse it.
    """

    subject: str
    listen: bool = False
    refused: bool = False
    body: bytes = b""


def client_probes(subjects: Subjects) -> Iterator[Probe]:
    """Yield a probe for each operation of clients that can be probed."""
    yield Probe(f"{subjects.root}.requests.{ABSENT}.{ABSENT}", refused=True)
    yield Probe(subjects.ping)
    yield from _common_probes(subjects)
    for stream in (subjects.requests_stream, subjects.commits_stream, subjects.dlq_stream, _blobs(subjects)):
        yield from _consumers(stream)
    yield Probe(f"$JS.API.STREAM.INFO.{subjects.dlq_stream}")
    yield Probe(f"$JS.API.STREAM.INFO.{subjects.sweep_stream}")
    for stream in (subjects.dlq_stream, subjects.sweep_stream):
        yield Probe(f"$JS.API.STREAM.MSG.GET.{stream}", body=b'{"seq":0}')
    yield Probe(subjects.progress(ABSENT, ABSENT), listen=True)


def server_probes(subjects: Subjects, reply_prefix: str = "_INBOX", *, create: bool = True) -> Iterator[Probe]:
    """Yield a probe for each operation of servers that can be probed. `create` is true if servers create streams."""
    yield Probe(f"{reply_prefix}.{ABSENT}")
    for kind in ("requests", "commits", "dlq"):
        yield Probe(f"{subjects.root}.{kind}.{ABSENT}.{ABSENT}", refused=True)
    yield Probe(subjects.sweep, refused=True)
    yield from _common_probes(subjects)
    tasks, sweep = subjects.tasks_stream, subjects.sweep_stream
    for stream in (
        *(subjects.requests_stream, tasks, sweep),
        *(subjects.commits_stream, subjects.dlq_stream, _blobs(subjects)),
    ):
        for call in ("CREATE", "UPDATE") if create else ():
            yield Probe(f"$JS.API.STREAM.{call}.{stream}")
    for stream in (sweep, subjects.dlq_stream):
        yield Probe(f"$JS.API.STREAM.INFO.{stream}")
    yield Probe(f"$JS.API.STREAM.MSG.GET.{subjects.dlq_stream}", body=b'{"seq":0}')  # for the garbage collection
    yield Probe(f"$JS.API.STREAM.MSG.DELETE.{subjects.requests_stream}")
    for stream in (subjects.requests_stream, subjects.commits_stream, subjects.dlq_stream, _blobs(subjects)):
        yield from _consumers(stream)
    for stream, consumer in ((tasks, TASKS_CONSUMER), (sweep, SWEEP_CONSUMER)):
        if create:
            yield Probe(f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{ABSENT}")
        yield Probe(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")
        yield Probe(f"$JS.ACK.{stream}.{ABSENT}.1.1.1.1.0")
    yield Probe(subjects.ping, listen=True)
    yield Probe("$JS.EVENT.ADVISORY.STREAM.DELETED.*", listen=True)


def _common_probes(subjects: Subjects) -> Iterator[Probe]:
    yield Probe(f"{subjects.root}.tasks.{ABSENT}.{ABSENT}.process", refused=True)
    for kind in ("C", "M"):
        yield Probe(f"$O.{subjects.blobs_bucket}.{kind}.{ABSENT}", refused=True)
    for stream in (subjects.requests_stream, subjects.tasks_stream, subjects.commits_stream, _blobs(subjects)):
        yield Probe(f"$JS.API.STREAM.INFO.{stream}")
    for stream in (subjects.requests_stream, subjects.tasks_stream, subjects.commits_stream, _blobs(subjects)):
        yield Probe(f"$JS.API.STREAM.MSG.GET.{stream}", body=b'{"seq":0}')
    yield Probe(f"$JS.FC.{ABSENT}")


def _consumers(stream: str) -> Iterator[Probe]:
    yield Probe(f"$JS.API.CONSUMER.CREATE.{stream}.{ABSENT}")
    yield Probe(f"$JS.API.CONSUMER.DELETE.{stream}.{ABSENT}")


def _blobs(subjects: Subjects) -> str:
    return f"OBJ_{subjects.blobs_bucket}"


async def missing_rights(connection: Connection, probes: Iterator[Probe]) -> list[str]:
    """Return the operations of `probes` that NATS denies to this user, as `publish to …` or `subscribe to …`.

    Raise `TransientError` if NATS cannot be reached.
    """
    denied: list[str] = []
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT)

    async def attempt(probe: Probe) -> None:
        async with limiter:
            try:
                await (_listen if probe.listen else _publish)(connection, probe)
            except NotAllowed as error:
                denied.append(f"{error.operation} to {error.subject}")

    async with anyio.create_task_group() as group:
        for probe in probes:
            group.start_soon(attempt, probe)
    return sorted(set(denied))


async def _publish(connection: Connection, probe: Probe) -> None:
    subject = probe.subject.replace("$JS.API.", JetStream(connection).prefix)  # the prefix may contain a domain
    try:
        headers = REFUSED if probe.refused else None
        await connection.request(subject, probe.body, headers, timeout=TIMEOUT)
    except (NoRespondersError, NoAnswerError):
        pass  # NATS let the message through, but no receiver answered


async def _listen(connection: Connection, probe: Probe) -> None:
    async with connection.subscribe(probe.subject) as messages:
        # If NATS denies the subscription, the error arrives before the answer to this message.
        with suppress(NotAllowed):
            await _publish(connection, Probe(connection.new_inbox()))
        with anyio.move_on_after(0.05):
            await anext(messages)
