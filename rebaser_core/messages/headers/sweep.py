"""Writes and reads the headers of commits that serve the sweeper and overviews of change sets, which decode no
payloads.

Invariant: `read_sweep_headers`, `read_unknown` and `read_covers` return what was written.
"""

import json

from rebaser_core.commit import Applied, Commit, Kind
from rebaser_core.encoding.envelope import APPLIED, COVERS, DEBT, DIGESTS, UNKNOWN, Headers
from rebaser_core.encoding.payload import malformed
from rebaser_core.messages.commit_fields.decision import write_digests
from rebaser_core.messages.headers.branches import read_branch

_CREATE = Kind.CREATE  # a lookup of an enum member takes 0.1 µs in Python 3.11


def sweep_headers(commit: Commit) -> dict[str, str]:
    """Return the headers of `commit` for the sweeper.

    Every commit has `X-Applied` (`<stream>:<sequence>`, or empty) and `X-Debt`. Unknown functions are in
    `X-Unknown-Functions`, and digests of requests in `X-Digests`. They are not in the payload, because readers of older
    releases refuse payloads with unknown fields.
    """
    applied = commit.applied
    headers = {
        APPLIED: f"{applied.stream}:{applied.sequence}" if applied else "",
        DEBT: str(commit.debt),
    }
    if commit.unknown:
        headers[UNKNOWN] = json.dumps(commit.unknown)
    if commit.requests and (digests := write_digests([decision.digest for decision in commit.requests])):
        headers[DIGESTS] = digests
    return headers


def read_sweep_headers(headers: Headers | None) -> tuple[Applied | None, int]:
    """Return the fields `applied` and `debt` of a commit from its headers. Raise `UnprocessableError` if the headers
    are missing or damaged."""
    headers = headers or {}
    applied, debt = headers.get(APPLIED), headers.get(DEBT)
    if applied is None or debt is None:
        raise malformed(f"the commit does not have both of the headers {APPLIED} and {DEBT}")
    if not applied:
        return None, _natural(debt)
    stream, _, sequence = applied.rpartition(":")  # the stream's creation time may contain colons
    return Applied(stream, _natural(sequence)), _natural(debt)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise malformed(f"{text[:40]!r} in a commit header is not a natural number")
    return int(text)


def read_unknown(headers: Headers | None) -> tuple[str, ...]:
    """Return the names of the functions that were missing on the server that wrote a commit.

    If the header is damaged, return no names. This does no harm, because the header only helps a server that has these
    functions to compute their values sooner.
    """
    text = (headers or {}).get(UNKNOWN)
    if not text:
        return ()
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple([name for name in names if type(name) is str]) if type(names) is list else ()


def covers_header(commit: Commit) -> dict[str, str]:
    """Return the header `X-Covers` of `commit`, or no header if the commit does not need it.

    The header contains the log sequence up to which derived values are up to date. It is empty if this is the sequence
    of the commit itself, in which case only a commit that creates a change set needs the header.
    """
    if commit.covers is None and commit.kind is not _CREATE:
        return {}
    return {COVERS: "" if commit.covers is None else str(commit.covers)}


def read_covers(headers: Headers | None, sequence: int) -> int | None:
    """Return the log sequence up to which derived values are up to date, from the headers of the commit at `sequence`.

    Earlier releases did not write `X-Covers`. If, for this reason, only the payload contains this sequence, return
    None. Raise `UnprocessableError` if the headers are damaged.
    """
    headers = headers or {}
    text = headers.get(COVERS)
    if text is not None:
        return _natural(text) if text else sequence
    branch = read_branch(headers)
    may_create = branch is not None and not branch.birth and branch.origin
    return None if headers.get(DEBT) != "0" or may_create else sequence
