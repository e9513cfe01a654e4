"""Reads and writes the headers that connect a message to a trace: `traceparent` and `tracestate` (W3C Trace Context).

Invariant: whatever the headers contain, reading them returns a context or None. Damaged headers are treated as missing.
"""

import re
from typing import Final, NamedTuple

from rebaser_core.encoding.envelope import Headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
SAMPLED = 1  # the flag that is set if the sender records the trace
MAX_STATE = 512  # characters

# Some libraries capitalize these names, as in HTTP headers, although NATS header names are case-sensitive.
CAPITALIZED_PARENT: Final = "Traceparent"
_CAPITALIZED_STATE = "Tracestate"
_LENGTH = len("00-") + 32 + len("-") + 16 + len("-00")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
# Only the keys of W3C Trace Context level 1 are accepted, because OpenTelemetry drops other keys and logs a warning
# each time.
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_MEMBER = rf"{_KEY}=[!-+\--<>-~ ]{{0,255}}[!-+\--<>-~]"
_STATE = re.compile(rf"{_MEMBER}(?:[ \t]*,[ \t]*{_MEMBER}){{0,31}}")


class TraceContext(NamedTuple):
    """A position in a trace: the ids of the trace and of one of its spans, as numbers. `flags` are the flags in the
    header `traceparent`, and `state` is the header `tracestate`."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the sender records the trace."""
        return bool(self.flags & SAMPLED)


def read_trace(headers: Headers | None) -> TraceContext | None:
    """Return the position in a trace from which a message was sent, or None if its headers do not contain a valid
    position."""
    if not headers:
        return None
    parent, name = headers.get(TRACEPARENT), TRACESTATE
    if parent is None:
        parent, name = headers.get(CAPITALIZED_PARENT), _CAPITALIZED_STATE
        if parent is None:
            return None
    found = _TRACEPARENT.match(parent)
    if found is None or found[1] == "ff" or (len(parent) > _LENGTH and (found[1] == "00" or parent[_LENGTH] != "-")):
        return None  # a later version may add fields after a hyphen
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not (trace_id and span_id):
        return None
    state = headers.get(name)
    usable = state is not None and len(state) <= MAX_STATE and _STATE.fullmatch(state) is not None
    return TraceContext(trace_id, span_id, int(found[4], 16), state if usable and state is not None else "")


def trace_headers(context: TraceContext) -> dict[str, str]:
    """Return the headers for a message that is sent from the position `context` in a trace."""
    headers = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.flags:02x}"}
    return headers | {TRACESTATE: context.state} if context.state else headers


def trace_fields(headers: Headers | None) -> dict[str, str]:
    """Return the fields `trace_id` and `span_id` for a log event about a message. If the message belongs to no trace,
    return an empty map."""
    context = read_trace(headers)
    return {} if context is None else {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
