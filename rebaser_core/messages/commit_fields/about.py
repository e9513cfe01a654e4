"""Defines the wire format of four fields of a commit: the authors of its requests, the edits that it reverts, the
change set whose edits it applies or replays, and the mark that it sets."""

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
    """The wire model of a mark. Exactly one of the two fields is given."""

    protected: bool | None = None
    status: str | None = None


def read_authors(rows: list[Any], requests: int) -> tuple[Authorship, ...]:
    if rows and len(rows) != requests:
        raise malformed(f"the commit has {len(rows)} authors for {requests} requests; the numbers must be equal")
    return tuple([_read_author(row) for row in rows])


def _read_author(row: object) -> Authorship:
    if type(row) is not list or len(row) != 2 or not type(row[0]) is type(row[1]) is str:
        raise malformed("each item of the field 'authors' must be a list of two strings: the author and the message")
    return Authorship(*row)


def read_reverts(body: RevertsV3) -> Reverts:
    request = None if body.request is None else RequestId(body.request)
    return Reverts(body.first, body.last, request, None if body.of is None else check_token(body.of, "change set"))


def read_source(kind: Kind, body: SourceV3 | None) -> Source | None:
    if body is None:
        if kind is Kind.REPLAY:
            raise malformed("a replay commit must have the field 'from', with the target and its log sequence")
        return None
    if kind not in (Kind.REBASE, Kind.REPLAY):
        raise malformed(f"a {kind} commit must not have the field 'from'; only rebase and replay commits may have it")
    if kind is Kind.REPLAY and body.keep:
        raise malformed(
            "a replay commit must not have the field 'keep'; only a commit that applies a branch may have it"
        )
    return Source(check_token(body.change_set, "change set"), body.sequence, body.keep)


def read_marking(kind: Kind, body: MarkV3 | None, *, changed: bool) -> Marking | None:
    """Return the mark that a commit of `kind` sets, or None if `body` is None.

    `changed` says whether the commit has a delta. Raise `UnprocessableError` if `body` is not valid for such a commit.
    """
    if (kind is Kind.MARK) != (body is not None):
        raise malformed("a mark commit must have the field 'mark', and no other commit may have it")
    if body is None:
        return None
    if changed:
        raise malformed("a mark commit must not have a delta")
    return check_marking(body.protected, None if body.status is None else read_status(body.status))


def check_marking(protected: bool | None, status: BranchStatus | None) -> Marking:
    """Return a mark with `protected` or `status`. Raise `UnprocessableError` if both or neither of them are given, or
    if `status` is `BranchStatus.CLOSED`, which only a request to create a change set can set."""
    if (protected is None) == (status is None):
        raise malformed("a mark must have either the field 'protected' or the field 'status', but not both")
    if status is BranchStatus.CLOSED:
        raise malformed(f"a mark cannot set the status {status.value!r}; only a request to create a change set can")
    return Marking(protected, status)


def write_marking(marking: Marking) -> dict[str, Any]:
    if marking.status is None:
        return {"protected": marking.protected}
    return {"status": marking.status.value}


def write_about(commit: Commit) -> dict[str, Any]:
    """Return the fields of `commit`'s wire map that the functions of this module read."""
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
