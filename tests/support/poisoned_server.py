"""`rebaser` with a defect: certain words in a request end the process, hang it, or make deciding fail.

A value named `DEADLY` ends the process when an update is planned. Such an update is deferred for long enough for a test
to see it.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rebaser.change_set import processor
from rebaser.change_set.attempts import counted_attempts
from rebaser.change_set.readers import request_reader
from rebaser.cli import main
from rebaser.dvu import update as run
from rebaser.runtime import context
from rebaser.testing.in_process import InProcessEngine
from rebaser_core.decisions.decide import DecidedBatch
from rebaser_core.decisions.queued_request import QueuedRequest

decode, decide, plan = request_reader.decode, processor.decide, run.plan  # type: ignore[attr-defined]


def deadly_decode(headers: Any, data: bytes, *arguments: Any, **more: Any) -> Any:
    if b"KILL" in data:
        os._exit(9)
    if b"HANG" in data:
        time.sleep(3600)
    return decode(headers, data, *arguments, **more)


def broken_decide(state: Any, applied: Any, requests: Sequence[QueuedRequest]) -> DecidedBatch:
    if any(update.id == "BREAK" for request in requests for update in request.updates):
        raise ZeroDivisionError
    return decide(state, applied, requests)


def deadly_plan(view: Any, *arguments: Any) -> Any:
    if view.cell("DEADLY"):
        os._exit(9)
    return plan(view, *arguments)


if __name__ == "__main__":
    request_reader.decode = deadly_decode  # type: ignore[assignment, attr-defined]
    processor.decide = broken_decide  # type: ignore[attr-defined]
    run.plan = deadly_plan  # type: ignore[assignment, attr-defined]
    context._spark = lambda *_: InProcessEngine()  # type: ignore[assignment]
    counted_attempts.DEFERRAL = 600.0
    sys.exit(main())  # type: ignore[func-returns-value]
