"""The wire format of the fields of a commit about its requests: who sent them, and what they reverted, applied or
marked."""

from typing import Any

from rebaser_core.commit import Authorship, BranchStatus, Commit, Kind, Marking, Reverts, Source
from rebaser_core.encoding.envelope import Body, Count
from rebaser_core.encoding.payload import malformed
from rebaser_core.ids import RequestId, check_token
from rebaser_core.messages.commit_fields.origin import read_status


class RevertsV3(Body):
    first: Count
    last: Count
    request: str | None = None
    of: str | None = None


class SourceV3(Body):
    change_set: str
    sequence: Count
    keep: bool = False


class MarkV3(Body):
    """Either `protected` or `status`."""

    protected: bool | None = None
    status: str | None = None


def read_authors(rows: list[Any], requests: int) -> tuple[Authorship, ...]:
    if rows and len(rows) != requests:
        raise malformed("the numbers of authors and of requests differ")
    return tuple([_read_author(row) for row in rows])


def _read_author(row: object) -> Authorship:
    if type(row) is not list or len(row) != 2 or not type(row[0]) is type(row[1]) is str:
        raise malformed("an author must be a row of two strings")
    return Authorship(*row)


def read_reverts(body: RevertsV3) -> Reverts:
    request = None if body.request is None else RequestId(body.request)
    return Reverts(body.first, body.last, request, None if body.of is None else check_token(body.of, "change set"))


def read_source(kind: Kind, body: SourceV3 | None) -> Source | None:
    if body is None:
        if kind is Kind.REPLAY:
            raise malformed("a replay commit must say what it replays")
        return None
    if kind not in (Kind.REBASE, Kind.REPLAY):
        raise malformed(f"a {kind} commit must not apply a branch, or replay its target")
    if kind is Kind.REPLAY and body.keep:
        raise malformed("a replay commit must not have keep: it applies no branch that could stay open")
    return Source(check_token(body.change_set, "change set"), body.sequence, body.keep)


def read_marking(kind: Kind, body: MarkV3 | None, *, changed: bool) -> Marking | None:
    """Read the marking of a commit; None if it has none. `changed` tells whether the commit has a delta."""
    if (kind is Kind.MARK) != (body is not None):
        raise malformed("a mark commit must have a mark, and no other commit may have one")
    if body is None:
        return None
    if changed:
        raise malformed("a mark commit must change no value")
    return check_marking(body.protected, None if body.status is None else read_status(body.status))


def check_marking(protected: bool | None, status: BranchStatus | None) -> Marking:
    """Return a mark; raises `UnprocessableError` if it has both fields or none, or a status that only `create` sets."""
    if (protected is None) == (status is None):
        raise malformed("a mark must have either protected or status")
    if status is BranchStatus.CLOSED:
        raise malformed(f"only a request to create gives a change set the status {status}")
    return Marking(protected, status)


def write_marking(marking: Marking) -> dict[str, Any]:
    if marking.status is None:
        return {"protected": marking.protected}
    return {"status": marking.status.value}


def write_about(commit: Commit) -> dict[str, Any]:
    """Return the fields of the wire map of `commit` that this module reads."""
    wire: dict[str, Any] = {}
    if commit.authors:
        wire["authors"] = [[one.author, one.message] for one in commit.authors]
    if commit.reverts is not None:
        wire["reverts"] = {"first": commit.reverts.first, "last": commit.reverts.last}
        if commit.reverts.request is not None:
            wire["reverts"]["request"] = commit.reverts.request
        if commit.reverts.of is not None:
            wire["reverts"]["of"] = commit.reverts.of
    if commit.source is not None:
        wire["from"] = {"changeSet": commit.source.change_set, "sequence": commit.source.sequence}
        wire["from"] |= {"keep": True} if commit.source.keep else {}
    if commit.marking is not None:
        wire["mark"] = write_marking(commit.marking)
    return wire
