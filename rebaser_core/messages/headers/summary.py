"""Writes and reads the header `X-Summary` of commits, for overviews of change sets.

The header has the form `errors=<number> owner=<server>`; either part may be missing. The server's id is
percent-encoded, and is omitted if it is too long. Readers ignore unknown parts. Commits of older releases lack this
header.
"""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from rebaser_core.encoding.envelope import SUMMARY, Headers

MAX_OWNER = 200  # maximum characters of an encoded server id; this limits the header to 256 bytes


class Summary(NamedTuple):
    """The summary of a change set in the header of its newest commit.

    `owner` is the id of the server that stored the commit, or empty if the header does not contain the id. `errors` is
    the number of values whose newest result is an error, or None if the header does not contain this number.
    """

    owner: str = ""
    errors: int | None = None


def write_summary(owner: str, errors: int | None) -> str:
    """Return the text of the header `X-Summary`."""
    name = quote(owner, safe="")
    parts = ["" if errors is None else f"errors={errors}", f"owner={name}" if name and len(name) <= MAX_OWNER else ""]
    return " ".join(filter(None, parts))


def read_summary(headers: Headers | None) -> Summary:
    """Return the summary in the header. A damaged part is treated as missing, because an overview is useful even
    without it."""
    return _parse((headers or {}).get(SUMMARY, ""))


@lru_cache(maxsize=1024)  # the commits of a server have few different texts
def _parse(text: str) -> Summary:
    parts = dict([part.partition("=")[::2] for part in text.split(" ")])
    errors, owner = parts.get("errors", ""), parts.get("owner", "")
    known = errors.isascii() and errors.isdigit() and len(errors) <= 19
    return Summary(unquote(owner) if len(owner) <= MAX_OWNER else "", int(errors) if known else None)
