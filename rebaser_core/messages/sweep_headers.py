"""The headers of a commit that the sweeper reads, so that it decodes no payload.

Invariant: `read_sweep_headers` and `read_unknown` return what `sweep_headers` was given.
"""

import json

from rebaser_core.commit import Applied, Commit
from rebaser_core.encoding.envelope import APPLIED, DEBT, DIGESTS, UNKNOWN, Headers
from rebaser_core.encoding.payload import malformed
from rebaser_core.messages.decision import write_digests


def sweep_headers(commit: Commit) -> dict[str, str]:
    """`X-Applied` (`<stream>:<sequence>`, or empty) and `X-Debt`.

    Also `X-Unknown-Functions` and `X-Digests` (of the requests), if the commit has any. They are headers because older
    readers refuse a body with unknown fields.
    """
    applied = commit.applied
    headers = {
        APPLIED: f"{applied.stream}:{applied.sequence}" if applied else "",
        DEBT: str(commit.debt),
    }
    if commit.unknown:
        headers[UNKNOWN] = json.dumps(commit.unknown)
    if commit.requests and (digests := write_digests(commit.requests)):
        headers[DIGESTS] = digests
    return headers


def read_sweep_headers(headers: Headers | None) -> tuple[Applied | None, int]:
    """`(applied, debt)` from the headers of a commit; raises `UnprocessableError` if they are missing or damaged."""
    headers = headers or {}
    applied, debt = headers.get(APPLIED), headers.get(DEBT)
    if applied is None or debt is None:
        raise malformed(f"the commit lacks the header {APPLIED} or {DEBT}")
    if not applied:
        return None, _natural(debt)
    stream, _, sequence = applied.rpartition(":")  # the stream's creation time may contain colons
    return Applied(stream, _natural(sequence)), _natural(debt)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise malformed(f"{text[:40]!r} in a header of a commit is not a natural number")
    return int(text)


def read_unknown(headers: Headers | None) -> tuple[str, ...]:
    """The functions that the writer of a commit lacked; empty if the header is damaged.

    The header only lets a server that has these functions compute their values sooner.
    """
    text = (headers or {}).get(UNKNOWN)
    if not text:
        return ()
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple([name for name in names if type(name) is str]) if type(names) is list else ()
