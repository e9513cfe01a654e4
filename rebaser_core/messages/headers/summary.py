"""Writes and reads the header `X-Summary` of commits, for overviews of change sets.

Its text is `errors=<number> owner=<server>`; either part may be missing. The id of the server is percent-encoded, and
is missing if it is too long. Readers ignore parts that they do not know. Commits of older releases have no such
header.
"""

from typing import NamedTuple
from urllib.parse import quote, unquote

from rebaser_core.encoding.envelope import SUMMARY, Headers

MAX_OWNER = 200  # characters of the encoded id of a server, so that the header takes at most 256 bytes


class Summary(NamedTuple):
    """What the newest commit says about its change set.

    - `owner`: the id of the server that stored the commit; empty if the header does not tell.
    - `errors`: the number of values whose newest result is an error; None if the header does not tell.
    """

    owner: str = ""
    errors: int | None = None


def write_summary(owner: str, errors: int | None) -> str:
    """Return the text of the header."""
    name = quote(owner, safe="")
    parts = ["" if errors is None else f"errors={errors}", f"owner={name}" if name and len(name) <= MAX_OWNER else ""]
    return " ".join(filter(None, parts))


def read_summary(headers: Headers | None) -> Summary:
    """Return what the header says. A damaged part counts as missing, because overviews are of use without it."""
    parts = dict([part.partition("=")[::2] for part in (headers or {}).get(SUMMARY, "").split(" ")])
    errors, owner = parts.get("errors", ""), parts.get("owner", "")
    known = errors.isascii() and errors.isdigit() and len(errors) <= 19
    return Summary(unquote(owner) if len(owner) <= MAX_OWNER else "", int(errors) if known else None)
