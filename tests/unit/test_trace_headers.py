"""Tests which headers of W3C Trace Context are read, and which are ignored."""

from unittest.mock import Mock, patch

import opentelemetry.trace.span
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rebaser.telemetry.span_maker import remote
from rebaser_core.messages.headers.traces import TraceContext, read_trace, trace_fields, trace_headers

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
FOUND = TraceContext(int(TRACE, 16), int(SPAN, 16), 1)


def test_a_position_is_read_back() -> None:
    for context in (FOUND, FOUND._replace(flags=0), FOUND._replace(state="a=1,b@c=2"), TraceContext(1, 1, 3)):
        assert read_trace(trace_headers(context)) == context
    assert trace_headers(FOUND) == {"traceparent": PARENT}
    assert [FOUND._replace(flags=flags).sampled for flags in (0, 1, 2, 3)] == [False, True, False, True]
    assert trace_fields({"traceparent": PARENT}) == {"trace_id": TRACE, "span_id": SPAN}
    assert trace_fields({}) == trace_fields(None) == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"Traceparent": PARENT},  # as HTTP libraries write it
        {"traceparent": PARENT, "tracestate": ""},
        {"traceparent": PARENT, "tracestate": "no member"},
        {"traceparent": PARENT, "tracestate": "a=" + "x" * 600},
        {"traceparent": PARENT, "tracestate": "a=b\x00"},
        {"traceparent": "01" + PARENT[2:]},
        {"traceparent": "cc" + PARENT[2:] + "-what-a-later-version-adds"},
    ],
)
def test_what_is_not_understood_is_left_out(headers: dict[str, str]) -> None:
    assert read_trace(headers) == FOUND


@pytest.mark.parametrize(
    "parent",
    [
        "", "0", "00", PARENT[:-1], PARENT + "1", PARENT + "-more", "ff" + PARENT[2:], PARENT.upper(),
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", PARENT.replace("-", "_"), f" {PARENT}",
        "01" + PARENT[2:] + "x", PARENT.replace("a", "\u0430"), PARENT * 200, "9" * 10_000, "\x00",
        f"00-{TRACE}-{SPAN}-0g",
    ],
)  # fmt: skip
def test_what_is_no_position_counts_as_missing(parent: str) -> None:
    assert read_trace({"traceparent": parent}) is None


_STATES = st.lists(st.from_regex(r"[a1][b2@/]{0,3}= ?[c~]{1,2}", fullmatch=True), max_size=3).map(", ".join)


@given(_STATES)
@example("1=b")  # a key of level 2 of the specification
@example("1a@b=c,d=e")
def test_opentelemetry_takes_each_state_that_is_read_without_a_warning(state: str) -> None:
    context = read_trace({"traceparent": PARENT, "tracestate": state})
    assert context is not None
    warnings = Mock()
    with patch.object(opentelemetry.trace.span, "_logger", warnings):
        remote(context)
    assert not warnings.mock_calls


@given(st.text(), st.text())
def test_any_headers_give_a_position_or_none(parent: str, state: str) -> None:
    assert read_trace({"traceparent": parent}) is None
    context = read_trace({"traceparent": PARENT, "tracestate": state})
    assert context is not None
    assert read_trace(trace_headers(context)) == context
