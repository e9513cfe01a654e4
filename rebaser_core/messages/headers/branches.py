"""Writes and reads the headers of commits that serve overviews of branches and the garbage collection.

A reader of these headers does not need the payload. Most commits have none of them:

- `X-Edited` contains the log sequence of the newest commit with edits, or 0 if there is none. If the header is missing,
  the newest commit with edits is this commit or an earlier one.
- `X-Branch` is in all commits of a change set that was created or closed by a request: `<target>@<base> <status>
  <changes> <conflicts> <origin>@<sequence> <birth> auto`. If there is no target or origin, its name is empty. A
  `create` commit has no `<birth>`. The last word is missing if the branch does not follow its target.
- `X-Protected` is `1` in all commits after which the change set is protected. Other commits do not have it.
- `X-From` specifies the branch that this commit applies, as `<change set>@<sequence>`.
- `X-Blobs` contains the addresses of all blobs that are needed to read the log from this commit on, separated by
  spaces. If there are many, it contains `@` and the address of a blob that lists them. If a commit of version 3 or
  newer lacks this header, no blobs are needed to read the log from this commit on.

Invariant: the functions that read headers return what was written, or raise `UnprocessableError`.
"""

from collections.abc import Iterable

from rebaser_core.blobs.address import check_address
from rebaser_core.commit import BranchStatus, BranchSummary, Commit, Kind, Source
from rebaser_core.encoding.envelope import BLOBS, BRANCH, CBOR, EDITED, FROM, PROTECTED, Headers, dumps, loads
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import RebaserError
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit_fields.origin import AUTO, read_status

LIST = "@"  # precedes the address of a blob that lists addresses
MAX_ADDRESSES = 200  # the maximum number of addresses in a header; more are listed in a blob


def branch_headers(commit: Commit) -> dict[str, str]:
    headers: dict[str, str] = {}
    if commit.edited is not None:
        headers[EDITED] = str(commit.edited)
    if commit.branch is not None:
        headers[BRANCH] = _write_summary(commit.branch)
    if commit.protected:
        headers[PROTECTED] = "1"
    if commit.source is not None and commit.kind is Kind.REBASE:
        headers[FROM] = f"{commit.source.change_set}@{commit.source.sequence}"
    if commit.blobs:
        headers[BLOBS] = " ".join(commit.blobs)
    return headers


def read_edited(headers: Headers | None, sequence: int) -> int:
    """Return the log sequence of the newest commit with edits, from the headers of the commit at `sequence`.

    If the header is missing, return `sequence`, which is an upper bound.
    """
    text = (headers or {}).get(EDITED)
    return sequence if text is None else _natural(text)


def read_branch(headers: Headers | None) -> BranchSummary | None:
    """Return the summary of the branch after a commit, from the headers of the commit.

    Return None if no request has created or closed the change set. Raise `UnprocessableError` if the header is damaged.
    """
    text = (headers or {}).get(BRANCH)
    if text is None:
        return None
    fields = text.split(" ")
    follows = fields[-1] == AUTO
    fields = fields[:-1] if follows else fields
    if len(fields) not in (5, 6):
        raise malformed(f"{text[:80]!r} in the header {BRANCH} does not describe a branch")
    target, base = _position(fields[0])
    origin, sequence = _position(fields[4])
    status = read_status(fields[1])
    birth = _natural(fields[5]) if len(fields) == 6 else 0
    changes, conflicts = _natural(fields[2]), _natural(fields[3])
    return BranchSummary(target, base, status, changes, conflicts, origin, sequence, birth, follows)


def read_status_after(headers: Headers | None) -> BranchStatus:
    """Return the status of the change set after a commit, from the headers of the commit. If the headers are damaged,
    return `open`."""
    try:
        branch = read_branch(headers)
    except RebaserError:
        branch = None
    return BranchStatus.OPEN if branch is None else branch.status


def is_deleted(headers: Headers | None) -> bool:
    """Return whether the change set is deleted after a commit, according to the headers of the commit."""
    return read_status_after(headers) is BranchStatus.DELETED


def read_protected(headers: Headers | None) -> bool:
    """Return whether the change set is protected after a commit, according to the headers of the commit."""
    return PROTECTED in (headers or {})


def read_source(headers: Headers | None) -> Source | None:
    """Return the branch that a commit applies, from the headers of the commit, or None if the commit applies no branch.

    `keep` is always false in the result, because the header does not contain it.
    """
    text = (headers or {}).get(FROM)
    return None if text is None else Source(*_position(text))


def read_blobs(headers: Headers | None) -> tuple[str, ...]:
    """Return the addresses in the header `X-Blobs`. Raise `UnprocessableError` if one of them is invalid.

    If the header does not contain the addresses themselves, the result has one item: `@`, followed by the address of a
    blob that lists them (see `decode_addresses`).
    """
    text = (headers or {}).get(BLOBS)
    if not text:
        return ()
    if text.startswith(LIST):
        return (LIST + check_address(text[1:]),)
    return tuple([check_address(address) for address in text.split(" ")])


def encode_addresses(addresses: Iterable[str]) -> bytes:
    """Encode `addresses` as a blob that lists them."""
    return dumps(CBOR, {"v1": {"addresses": list(addresses)}})


def decode_addresses(data: bytes) -> tuple[str, ...]:
    """Decode addresses that `encode_addresses` has encoded as `data`. Raise `UnprocessableError` if `data` is not
    valid."""
    raw = loads(CBOR, data, COMMIT_LIMITS)
    body = raw.get("v1") if type(raw) is dict and len(raw) == 1 else None
    addresses = body.get("addresses") if type(body) is dict and len(body) == 1 else None
    if type(addresses) is not list:
        raise malformed("the blob does not contain a list of blob addresses")
    return tuple([check_address(address) for address in addresses])


def _write_summary(branch: BranchSummary) -> str:
    return (
        f"{branch.target}@{branch.base} {branch.status} {branch.changes} {branch.conflicts}"
        f" {branch.origin}@{branch.origin_sequence}"
        + (f" {branch.birth}" if branch.birth else "")
        + (f" {AUTO}" if branch.follows else "")
    )


def _position(text: str) -> tuple[str, int]:
    name, separator, sequence = text.rpartition("@")
    if not separator:
        raise malformed(f"{text[:80]!r} in a commit header is not a position such as main@17")
    return name, _natural(sequence)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise malformed(f"{text[:40]!r} in a commit header is not a natural number")
    return int(text)
