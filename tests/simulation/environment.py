"""Everything that would make two runs differ, replaced while a simulation runs: clocks, randomness, threads, the link.

Invariant: what was replaced is put back, whatever happened. The product's code is not changed by this.
"""

import gc
import os
import random
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import anyio.to_thread
import structlog
from anyio._backends._asyncio import CancelScope

import rebaser.context
import rebaser_client.blobs.jetstream
import rebaser_client.jetstream.connection
from tests.simulation.loop import PROCESS, SimLoop, scope_hash
from tests.simulation.model.server import BEGAN_NS
from tests.simulation.model.store import NANOS
from tests.simulation.network import Network

Log = Callable[[str, dict[str, Any]], None]
BLOB_CHUNK = 1024  # bytes, so that blobs of some size have several


@contextmanager
def replaced(loop: SimLoop, network: Network, seed: int, engine: Callable[..., Any], log: Log) -> Iterator[None]:
    """Inside, the product lives in the world of `loop` and `network`. `log` gets its log events."""
    rng = random.Random(f"environment {seed}")

    def wall_ns() -> int:
        process = PROCESS.get()
        clock = 0 if process is None else process.clock
        return BEGAN_NS + int(loop.time() * NANOS) + clock * 1_000_000

    async def run_sync(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await anyio.sleep(rng.random() * 0.002)
        return function(*args)

    def keep(_: object, name: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
        log(name, dict(entry))
        raise structlog.DropEvent

    replacements: list[tuple[Any, str, Any]] = [
        (time, "time", lambda: wall_ns() / NANOS),
        (time, "time_ns", wall_ns),
        (time, "monotonic", loop.time),
        (time, "monotonic_ns", lambda: int(loop.time() * NANOS)),
        (os, "urandom", rng.randbytes),
        (secrets, "token_hex", lambda count=8: rng.randbytes(count).hex()),
        (secrets, "token_bytes", lambda count=8: rng.randbytes(count)),
        (anyio.to_thread, "run_sync", run_sync),
        (CancelScope, "__hash__", scope_hash),
        (rebaser_client.jetstream.connection, "Link", network),
        (rebaser_client.blobs.jetstream, "CHUNK", BLOB_CHUNK),
        (rebaser.context, "Engine", engine),
    ]
    processors = structlog.get_config()["processors"]
    state, thresholds, collecting = random.getstate(), gc.get_threshold(), gc.isenabled()
    patches = [mock.patch.object(target, name, new) for target, name, new in replacements]
    gc.freeze()
    gc.disable()  # what a collection ends, it would end at another moment each time
    random.seed(f"product {seed}")
    processors.insert(0, keep)
    try:
        for patch in patches:
            patch.start()
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
        processors.remove(keep)
        random.setstate(state)
        gc.set_threshold(*thresholds)
        with warnings.catch_warnings():
            # The dead left coroutines behind that had not begun.
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
        gc.unfreeze()
        if collecting:
            gc.enable()
