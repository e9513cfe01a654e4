"""`rebaser`, computing in its own process: for what is to be seen of a server whatever computes for it."""

import sys
from collections.abc import Sequence
from typing import Any, Self

import anyio
from anyio import to_thread

from rebaser.cli import main
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.runtime import context


class Engine:
    """Evaluates packets as a worker of Spark would, plug-ins included."""

    state = "ready"

    def __init__(self, *_: Any) -> None:
        self.ready = anyio.Event()

    async def __aenter__(self) -> Self:
        self.ready.set()
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def available(self) -> None:
        return None

    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        return [await to_thread.run_sync(evaluate_packet, packet) for packet in packets]

    async def share(self, _: object) -> None:
        return None


if __name__ == "__main__":
    context.Engine = Engine  # type: ignore[assignment, attr-defined]
    sys.exit(main())  # type: ignore[func-returns-value]
