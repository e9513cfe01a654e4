"""What the spans of a change set keep between two batches of requests."""

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.streams.subjects import Subjects
from tests.support.traces import Recorder


class Watched(Commit):
    """A commit that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def test_a_commit_is_not_kept_once_its_requests_are_answered() -> None:
    """It may refer to large definitions, and its owner may be idle for long."""
    spans = Recorder().server()(Subjects(), ChangeSetKey("ws", "cs"))
    decision = Decision(1, RequestId("r"), Outcome.SUCCESS)
    message: Any = SimpleNamespace(headers={}, timestamp_ns=time.time_ns(), stream_sequence=1, data=b"")
    batch: Any = SimpleNamespace(answers=[(decision, None)], decisions=[decision])
    spans.taken_at = time.time_ns()
    spans.decided([message], batch)
    commit = Watched("c", 0, Kind.REBASE, 0, "o", None, None, (decision,))
    kept = weakref.ref(commit)
    spans.append_begins(commit, 10)
    spans.append_ended(1)
    assert spans.answered(1) == []
    del commit
    gc.collect()
    assert kept() is None
