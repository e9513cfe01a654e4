"""The fuzz targets: for each, valid examples, how they are damaged, and what must hold for any bytes.

A check takes only bytes, so that a failing input can be kept as a file. It may raise the errors that the tested code
documents, and returns otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.branch_targets import (
    check_addresses,
    check_candidates,
    check_changes,
    check_headers,
    check_replay,
    check_result,
    check_tail_blob,
    make_candidates,
    make_headers,
)
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
    check_trace,
    make_call,
    make_formula,
    make_lines,
    make_subject,
    make_trace,
)


@dataclass(frozen=True)
class Target:
    """A target. `make` returns an input; `check` raises for an input that shows a defect."""

    make: Callable[[Mutator], bytes]
    check: Callable[[bytes], object]


TARGETS = {
    "request": Target(make_message("EnqueueUpdatesRequest"), check_request),
    "reply": Target(make_message("EnqueueUpdatesResponse"), check_reply),
    "commit": Target(make_message("Commit"), check_commit),
    "checkpoint": Target(make_part, check_checkpoint),
    "checkpoint_v1": Target(make_blob("Checkpoint"), check_checkpoint),
    "blob": Target(make_blob("UpdatesBlob", "DeltaBlob"), check_blob),
    "tail": Target(make_blob("TailBlob"), check_tail_blob),
    "changes": Target(make_blob("ChangesBlob"), check_changes),
    "replay": Target(make_blob("ReplayBlob"), check_replay),
    "result": Target(make_blob("ResultBlob"), check_result),
    "addresses": Target(make_blob("AddressesBlob"), check_addresses),
    "candidates": Target(make_candidates, check_candidates),
    "headers": Target(make_headers(), check_headers),
    "columns": Target(make_columns, check_columns),
    "value": Target(make_value, check_value),
    "subject": Target(make_subject, check_subject),
    "trace": Target(make_trace, check_trace),
    "lines": Target(make_lines, check_lines),
    "formula": Target(make_formula, check_formula),
    "function": Target(make_call, check_call),
    "stream": Target(make_stream, check_stream),
}
