"""What the spans of a change set keep between two batches of requests."""

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from rebaser.telemetry import feeds
from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.ids import RequestId
from tests.support.traces import Recorder


class Watched(Commit):
    """A commit that can be referred to weakly."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_commit_is_not_kept_once_its_requests_are_answered(ratio: float) -> None:
    """It may refer to large definitions, and its owner may be idle for long."""
    spans = Recorder().change_set(ratio=ratio, slower_than=-1e6)
    decision = Decision(1, RequestId("r"), Outcome.SUCCESS)
    message: Any = SimpleNamespace(headers={}, timestamp_ns=time.time_ns(), stream_sequence=1, data=b"")
    batch: Any = SimpleNamespace(answers=[(decision, None)], decisions=[decision])
    spans.decided([message], batch, time.monotonic_ns(), spans.maker.chosen([message], 1))
    commit = Watched("c", 0, Kind.REBASE, 0, "o", None, None, (decision,))
    kept = weakref.ref(commit)
    spans.append_begins(commit, 10)
    spans.append_ended(1)
    spans.answered(1, [message], batch, time.monotonic_ns(), (1, feeds.clock(), feeds.clock(), commit.id, 10))
    assert spans.batch is None
    del commit
    gc.collect()
    assert kept() is None


def test_a_commit_without_recorded_requests_after_which_no_update_is_due_covers_the_recorded_ones() -> None:
    """An update that begins later is not caused by them."""
    recorder = Recorder()
    spans = recorder.change_set(ratio=1.0)
    decision = Decision(1, RequestId("r"), Outcome.SUCCESS)
    message: Any = SimpleNamespace(headers={}, timestamp_ns=time.time_ns(), stream_sequence=1, data=b"")
    batch: Any = SimpleNamespace(answers=[(decision, None)], decisions=[decision])
    spans.decided([message], batch, time.monotonic_ns(), spans.maker.chosen([message], 1))
    assert spans.append_begins(Commit("c", 0, Kind.REBASE, 0, "o", None, 0, (decision,)), 10)
    spans.append_ended(1)
    assert spans.answered(1, [message], batch, time.monotonic_ns(), None)
    spans.update_begins()
    assert spans.update_planned(1)
    spans.maker = recorder.change_set().maker
    spans.decided([message], batch, time.monotonic_ns(), spans.maker.chosen([message], 1))
    assert spans.append_begins(Commit("c", 1, Kind.REBASE, 0, "o", None, None, (decision,)), 10) == {}
    spans.append_ended(2)
    spans.update_begins()
    assert spans.update_planned(2) == {}


@pytest.mark.parametrize("wrong", [-600, 600])
def test_the_spans_of_a_batch_have_one_clock_and_no_request_is_slow_because_the_clock_of_the_server_is_wrong(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, decision = Recorder(), Decision(1, RequestId("r"), Outcome.SUCCESS)
    real = time.time_ns
    stored = real()
    message: Any = SimpleNamespace(headers={}, timestamp_ns=stored, stream_sequence=1, data=b"")
    batch: Any = SimpleNamespace(answers=[(decision, None)], decisions=[decision])
    commit = Commit("c", 0, Kind.REBASE, 0, "o", None, None, (decision,))
    monkeypatch.setattr(time, "time_ns", lambda: real() + wrong * 10**9)
    NATS_CLOCK.compare(wrong)
    try:
        for slower_than in (300.0, -1e6):
            spans = recorder.change_set(slower_than=slower_than)
            taken, began = time.monotonic_ns(), feeds.clock()
            spans.decided([message], batch, taken, spans.maker.chosen([message], 1))
            now = feeds.requests_answered([message], taken)
            if now - message.timestamp_ns > spans.maker.slower_than:
                assert spans.answered(1, [message], batch, taken, (1, began, feeds.clock(), commit.id, 10))
            else:
                assert slower_than > 0
        spans = recorder.change_set(ratio=1.0)
        spans.decided([message], batch, time.monotonic_ns(), spans.maker.chosen([message], 1))
        spans.append_begins(commit, 10)
        spans.append_ended(1)
        assert spans.answered(1, [message], batch, time.monotonic_ns(), None)
    finally:
        monkeypatch.undo()
        NATS_CLOCK.compare(0.0)
    found = recorder.spans()
    assert len(found) == 4
    for span in found:
        assert stored - 300 * 10**9 < span.start_time <= span.end_time < stored + 300 * 10**9
