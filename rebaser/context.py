"""What every owner on a server shares: connections, stores, the DVU engine, clocks."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from rebaser.change_set.dead_letters import DeadLetters
from rebaser.change_set.deleter import Deleter
from rebaser.dvu.engine import Engine
from rebaser.settings import Settings
from rebaser.troubles import Troubles
from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log_reader import LogReader
from rebaser_core.subjects import Subjects


@dataclass(frozen=True, slots=True)
class Context:
    """`now` is monotonic seconds, `now_ms` Unix milliseconds, `new_id` makes a ULID.

    `suspects`: who holds it tries a request that an owner may have died of, see `rebaser.change_set.probation`;
    `suspect_dvus`: the same for a DVU.
    """

    settings: Settings
    connection: Connection
    js: JetStream
    subjects: Subjects
    blobs: BlobStore
    reader: LogReader
    engine: Engine
    deleter: Deleter
    dead_letters: DeadLetters
    now: Callable[[], float]
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    troubles: Troubles = field(default_factory=Troubles)
    suspects: anyio.Lock = field(default_factory=anyio.Lock)
    suspect_dvus: anyio.Lock = field(default_factory=anyio.Lock)
