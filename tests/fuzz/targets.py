"""What is fuzzed: for each target valid examples, how they are damaged, and what must hold for any bytes.

A check takes bytes and nothing else, so that a failing input can be kept as it is. It may raise what the code it tests
says it raises; it returns for everything else that is right.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.message_targets import check_commit, check_reply, check_request, make_message
from tests.fuzz.mutate import Mutator
from tests.fuzz.payload_targets import (
    check_blob,
    check_checkpoint,
    check_columns,
    check_value,
    make_blob,
    make_columns,
    make_part,
    make_value,
)
from tests.fuzz.stream_target import check_stream, make_stream
from tests.fuzz.text_targets import (
    check_call,
    check_formula,
    check_lines,
    check_subject,
    make_call,
    make_formula,
    make_lines,
    make_subject,
)


@dataclass(frozen=True)
class Target:
    """`make` gives an input; `check` raises for one that shows a defect."""

    make: Callable[[Mutator], bytes]
    check: Callable[[bytes], object]


TARGETS = {
    "request": Target(make_message("EnqueueUpdatesRequest"), check_request),
    "reply": Target(make_message("EnqueueUpdatesResponse"), check_reply),
    "commit": Target(make_message("Commit"), check_commit),
    "checkpoint": Target(make_part, check_checkpoint),
    "checkpoint_v1": Target(make_blob("Checkpoint"), check_checkpoint),
    "blob": Target(make_blob("UpdatesBlob", "DeltaBlob"), check_blob),
    "columns": Target(make_columns, check_columns),
    "value": Target(make_value, check_value),
    "subject": Target(make_subject, check_subject),
    "lines": Target(make_lines, check_lines),
    "formula": Target(make_formula, check_formula),
    "function": Target(make_call, check_call),
    "stream": Target(make_stream, check_stream),
}
