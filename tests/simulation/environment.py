"""Replaces everything that could make two runs differ while a simulation runs: clocks, randomness, threads, the
network.

Invariant: everything that was replaced is restored, even after an error. The product's code is not changed.
"""

import dataclasses
import gc
import os
import random
import secrets
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import anyio.to_thread
import structlog
from anyio._backends._asyncio import CancelScope

import rebaser.change_set.log.commit_log
import rebaser.dvu.update
import rebaser.runtime.context
import rebaser.server
import rebaser.serving
import rebaser.telemetry.feeds
import rebaser_client.blobs.freshness
import rebaser_client.blobs.nats
import rebaser_client.nats.connection
from rebaser.change_set.log import checkpointer
from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import loader
from rebaser.dvu.functions.registry import registry
from rebaser.dvu.planning import warm_up
from rebaser_client.jetstream import Connection, Message
from rebaser_core import thresholds
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.encoding.envelope import MESSAGE_ID
from rebaser_core.messages import REGISTRY
from rebaser_core.thresholds import Thresholds
from tests.simulation.left import Left
from tests.simulation.loop import PROCESS, SimLoop, scope_hash
from tests.simulation.model.server import BEGAN_NS
from tests.simulation.model.store import NANOS
from tests.simulation.network import Network
from tests.simulation.setup import USUAL

REGISTRY.build()  # as a server does at its start

Log = Callable[[str, dict[str, Any]], None]
APPEND_TIMEOUT = 1.0  # seconds; short enough that an append is repeated before a delayed first copy arrives
BLOB_CHUNK = 1024  # bytes; small enough that larger blobs have several chunks


async def _no_poison(_: str) -> None: ...


def prepare(limits: Thresholds) -> None:
    """Load everything that is loaded once per process, so that the first run does not differ from later ones."""
    registry()
    fingerprint.code()
    if min(limits.interpreted_max, limits.kernel_load_min_elements) < USUAL.interpreted_max and loader.load():
        _warm()


@cache
def _warm() -> None:
    warm_up.warm()


def _uuid4(urandom: Callable[[int], bytes] = os.urandom) -> uuid.UUID:
    """Return a random UUID that is not drawn from the seed. Numba draws one for each file of compiled code that it
    stores, so the number of draws depends on the machine."""
    return uuid.UUID(bytes=urandom(16), version=4)


def _request_id(message: Message) -> str:
    return message.headers.get(MESSAGE_ID, "").rpartition(".")[2].partition("#")[0]


def with_rounds(limits: Thresholds) -> Thresholds:
    """Return `limits` with which every owner prepares the commits of small requests. Owners of a small world rarely get
    requests in the same turn."""
    return dataclasses.replace(limits, round_min_owners=1, plain_request_max_updates=16)


@contextmanager
def replaced(
    loop: SimLoop,
    network: Network,
    seed: int,
    engine: Callable[..., Any],
    log: Log,
    taste: Callable[[str], Awaitable[None]] = _no_poison,
    left: Left | None = None,
    limits: Thresholds = USUAL,
    crowded: float | None = None,
) -> Iterator[None]:
    """Run the product in the world of `loop` and `network` inside the `with` block.

    The thresholds are those of `limits`. `log` gets the log events. `taste` is awaited with the id of each request
    before the request is read. `left` is told which servers and connections are made and closed. `crowded` is the share
    of the bound of all logs from which on history is purged, if it differs from the product's.
    """
    rng = random.Random(f"environment {seed}")

    def wall_ns() -> int:
        process = PROCESS.get()
        clock = 0 if process is None else process.clock
        return BEGAN_NS + int(loop.time() * NANOS) + clock * 1_000_000

    async def run_sync(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await anyio.sleep(rng.random() * 0.002)
        return function(*args)

    read = RequestReader.read

    async def read_poison(self: RequestReader, message: Message) -> QueuedRequest:
        await taste(_request_id(message))
        return await read(self, message)

    read_plain, bites = RequestReader.read_plain, getattr(getattr(taste, "__self__", None), "bites", {})

    def read_harmless(self: RequestReader, message: Message) -> QueuedRequest | None:
        return None if bites.get(_request_id(message)) else read_plain(self, message)

    def keep(_: object, name: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
        log(name, dict(entry))
        raise structlog.DropEvent

    replacements: list[tuple[Any, str, Any]] = [
        (time, "time", lambda: wall_ns() / NANOS),
        (time, "time_ns", wall_ns),
        (time, "monotonic", loop.time),
        (rebaser.telemetry.feeds, "clock", loop.time),
        (time, "thread_time", lambda: 0.0),  # computing takes no virtual time
        (time, "monotonic_ns", lambda: int(loop.time() * NANOS)),
        (os, "urandom", rng.randbytes),
        (uuid, "uuid4", _uuid4),
        (secrets, "token_hex", lambda count=8: rng.randbytes(count).hex()),
        (secrets, "token_bytes", lambda count=8: rng.randbytes(count)),
        (anyio.to_thread, "run_sync", run_sync),
        (CancelScope, "__hash__", scope_hash),
        (rebaser_client.nats.connection, "Link", network),
        (rebaser_client.blobs.nats, "CHUNK", BLOB_CHUNK),
        (rebaser_client.blobs.freshness, "boot_time", loop.time),
        (rebaser.change_set.log.commit_log, "APPEND_TIMEOUT", APPEND_TIMEOUT),
        (rebaser.runtime.context, "Engine", engine),
        (thresholds, "now", with_rounds(limits) if seed % 2 else limits),
        (checkpointer, "CROWDED", checkpointer.CROWDED if crowded is None else crowded),
        (RequestReader, "read", read_poison),
        (RequestReader, "read_plain", read_harmless),
    ]
    if left is not None:
        replacements += [
            (rebaser.serving, "Server", left.make_server),
            (rebaser.server, "Owner", left.make_owner),
            (Connection, "_close", left.closing()),
        ]
    logging = structlog.get_config()
    state, collections, collecting = random.getstate(), gc.get_threshold(), gc.isenabled()
    patches = [mock.patch.object(target, name, new) for target, name, new in replacements]
    gc.freeze()
    gc.disable()  # A collection would run finalizers at another moment in each run.
    random.seed(f"product {seed}")
    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        for patch in patches:
            patch.start()
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
        structlog.configure(**logging)
        random.setstate(state)
        gc.set_threshold(*collections)
        with warnings.catch_warnings():
            # Dead processes leave coroutines that never began to run.
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
        gc.unfreeze()
        if collecting:
            gc.enable()
