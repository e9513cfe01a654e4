"""`rebaser`, with a defect: certain words in a request end the process, hang it, or break what decides."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rebaser.change_set import processor, reading
from rebaser.cli import main
from rebaser_core.decide import Decided, Incoming

decode, decide = reading.decode, processor.decide


def deadly_decode(headers: Any, data: bytes, *arguments: Any, **more: Any) -> Any:
    if b"KILL" in data:
        os._exit(9)
    if b"HANG" in data:
        time.sleep(3600)
    return decode(headers, data, *arguments, **more)


def broken_decide(state: Any, epoch: Any, incoming: Sequence[Incoming]) -> Decided:
    if any(update.id == "BREAK" for request in incoming for update in request.updates):
        raise ZeroDivisionError
    return decide(state, epoch, incoming)


if __name__ == "__main__":
    reading.decode = deadly_decode  # type: ignore[assignment]
    processor.decide = broken_decide
    sys.exit(main())
