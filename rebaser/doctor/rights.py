"""Which rights the user has that we are to NATS, of those that a client and that a server need.

Invariant: a probe does nothing. It asks, or it asks for what cannot be (a message that its stream has to refuse, an API
call without the body it needs, a consumer that nobody has); NATS looks at rights before all that. What cannot be asked
for without doing it (purging, taking tasks, unpinning, telling progress) is not probed.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import anyio

from rebaser_client.errors import NotAllowed
from rebaser_client.jetstream import Connection, NoRespondersError, RequestTimeoutError
from rebaser_core.subjects import Subjects
from rebaser_core.topology import SWEEP_CONSUMER, TASKS_CONSUMER

NOBODY = "rebaser-doctor"  # a consumer, a stream, a change set that there is not
REFUSED = {"Nats-Expected-Stream": NOBODY}
TIMEOUT = 2.0  # seconds for each answer
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Probe:
    """An attempt to publish `body` (`listen`: to subscribe) to `subject`; `refused`: its stream has to refuse that."""

    subject: str
    listen: bool = False
    refused: bool = False
    body: bytes = b""


def of_clients(subjects: Subjects) -> Iterator[Probe]:
    """What clients do, as far as it can be probed."""
    yield Probe(f"{subjects.root}.requests.{NOBODY}.{NOBODY}", refused=True)
    yield Probe(subjects.ping)
    yield from _of_both(subjects)
    for stream in (subjects.requests_stream, subjects.commits_stream, subjects.dlq_stream, _blobs(subjects)):
        yield from _consumers(stream)
    yield Probe(f"$JS.API.STREAM.INFO.{subjects.dlq_stream}")
    yield Probe(f"$JS.API.STREAM.INFO.{subjects.sweep_stream}")
    yield Probe(f"$JS.API.STREAM.MSG.GET.{subjects.sweep_stream}", body=b'{"seq":0}')
    yield Probe(subjects.progress(NOBODY, NOBODY), listen=True)


def of_servers(subjects: Subjects, inbox_prefix: str = "_INBOX") -> Iterator[Probe]:
    """What servers do, as far as it can be probed."""
    yield Probe(f"{inbox_prefix}.{NOBODY}")
    for kind in ("commits", "dlq"):
        yield Probe(f"{subjects.root}.{kind}.{NOBODY}.{NOBODY}", refused=True)
    yield Probe(subjects.sweep, refused=True)
    yield from _of_both(subjects)
    tasks, sweep = subjects.tasks_stream, subjects.sweep_stream
    for stream in (
        *(subjects.requests_stream, tasks, sweep),
        *(subjects.commits_stream, subjects.dlq_stream, _blobs(subjects)),
    ):
        for call in ("CREATE", "UPDATE"):
            yield Probe(f"$JS.API.STREAM.{call}.{stream}")
    for stream in (sweep, subjects.dlq_stream):
        yield Probe(f"$JS.API.STREAM.INFO.{stream}")
    yield Probe(f"$JS.API.STREAM.MSG.GET.{tasks}", body=b'{"seq":0}')
    yield Probe(f"$JS.API.STREAM.MSG.DELETE.{subjects.requests_stream}")
    for stream in (subjects.requests_stream, subjects.commits_stream, _blobs(subjects)):
        yield from _consumers(stream)
    for stream, consumer in ((tasks, TASKS_CONSUMER), (sweep, SWEEP_CONSUMER)):
        yield Probe(f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{NOBODY}")
        yield Probe(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")
        yield Probe(f"$JS.ACK.{stream}.{NOBODY}.1.1.1.1.0")
    yield Probe(subjects.ping, listen=True)
    yield Probe("$JS.EVENT.ADVISORY.STREAM.DELETED.*", listen=True)


def _of_both(subjects: Subjects) -> Iterator[Probe]:
    yield Probe(f"{subjects.root}.tasks.{NOBODY}.{NOBODY}.process", refused=True)
    for kind in ("C", "M"):
        yield Probe(f"$O.{subjects.blobs_bucket}.{kind}.{NOBODY}", refused=True)
    for stream in (subjects.requests_stream, subjects.tasks_stream, subjects.commits_stream, _blobs(subjects)):
        yield Probe(f"$JS.API.STREAM.INFO.{stream}")
    for stream in (subjects.requests_stream, subjects.commits_stream, _blobs(subjects)):
        yield Probe(f"$JS.API.STREAM.MSG.GET.{stream}", body=b'{"seq":0}')
    yield Probe(f"$JS.FC.{NOBODY}")


def _consumers(stream: str) -> Iterator[Probe]:
    yield Probe(f"$JS.API.CONSUMER.CREATE.{stream}.{NOBODY}")
    yield Probe(f"$JS.API.CONSUMER.DELETE.{stream}.{NOBODY}")


def _blobs(subjects: Subjects) -> str:
    return f"OBJ_{subjects.blobs_bucket}"


async def lacking(connection: Connection, probes: Iterator[Probe]) -> list[str]:
    """What of `probes` this user may not do: `publish to …`, `subscribe to …`. Raises `TransientError`."""
    found: list[str] = []
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def attempt(probe: Probe) -> None:
        async with limiter:
            try:
                await (_listen if probe.listen else _publish)(connection, probe)
            except NotAllowed as error:
                found.append(f"{error.operation} to {error.subject}")

    async with anyio.create_task_group() as group:
        for probe in probes:
            group.start_soon(attempt, probe)
    return sorted(set(found))


async def _publish(connection: Connection, probe: Probe) -> None:
    try:
        headers = REFUSED if probe.refused else None
        await connection.request(probe.subject, probe.body, headers, timeout=TIMEOUT)
    except (NoRespondersError, RequestTimeoutError):
        pass  # nobody is there, but it was let through


async def _listen(connection: Connection, probe: Probe) -> None:
    async with connection.subscribe(probe.subject) as messages:
        with suppress(NotAllowed):  # whatever NATS says of this, what it says of the other comes before
            await _publish(connection, Probe(connection.new_inbox()))
        with anyio.move_on_after(0.05):
            await anext(messages)
