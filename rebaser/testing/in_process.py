"""Computes derived values in this process, with the code that runs on Spark's workers, but without Spark."""

from collections.abc import Sequence
from typing import Any, Self

import anyio
from anyio import to_thread

from rebaser.dvu.worker.evaluate import evaluate_packet


class InProcessEngine:
    """Replaces `rebaser.dvu.spark.engine.Engine`. All functions, including plug-ins, run in threads of this process."""

    state = "ready"
    load = ((0, 0), (0, 0))  # no job waits, and none runs
    functions: dict[str, str] = {}  # noqa: RUF012 - nothing is added
    tags: dict[str, str] = {}  # noqa: RUF012 - nothing is added

    def __init__(self) -> None:
        self.ready = anyio.Event()

    async def __aenter__(self) -> Self:
        self.ready.set()
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def available(self) -> None:
        """Return at once, because this engine is always available."""

    async def evaluate(self, packets: Sequence[bytes], **_: Any) -> list[list[bytes]]:
        """Return the results of each packet. Raise `DvuError` in the same cases as a worker."""
        return [await to_thread.run_sync(evaluate_packet, packet) for packet in packets]

    async def share(self, _: object) -> None:
        """Do nothing, because every packet contains its structure."""
