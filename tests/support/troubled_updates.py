"""Updates of derived values that hang or fail, in an installation without Spark."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from rebaser.testing.in_process import InProcessEngine
from rebaser_core.errors import DvuError
from rebaser_core.updates import Derive, Set, Update


def troubled(trouble: str) -> list[Update]:
    """Return edits of a change set whose update hangs or fails; `trouble` is `hang` or `fail`."""
    return [Set("a", f"<{trouble}>"), Derive("b", "concat", {"x": "a"})]


@contextmanager
def troubled_updates() -> Iterator[threading.Event]:
    """Make updates of values with the texts `<hang>` and `<fail>` hang or fail, until the block ends or the event is
    set."""
    ended, evaluate = threading.Event(), InProcessEngine.evaluate

    async def troubled_evaluate(self: InProcessEngine, packets: Sequence[bytes], **options: Any) -> list[list[bytes]]:
        while not ended.is_set() and any(b"<hang>" in packet for packet in packets):  # noqa: ASYNC110 - of threads
            await anyio.sleep(0.02)
        if not ended.is_set() and any(b"<fail>" in packet for packet in packets):
            raise DvuError("a function needs more memory <b>than</b> there is", code="spark")
        return await evaluate(self, packets, **options)

    InProcessEngine.evaluate = troubled_evaluate  # type: ignore[method-assign]
    try:
        yield ended
    finally:
        ended.set()
        InProcessEngine.evaluate = evaluate  # type: ignore[method-assign]
