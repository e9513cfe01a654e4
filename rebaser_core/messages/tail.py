"""Copies commits from a parent to a branch, and encodes and decodes the blobs of branches.

The tail of a branch consists of the commits in the parent's log after the parent's checkpoint, up to the position from
which the branch was created. They are copied into the branch's `create` commit.

Invariant: folding a copied commit has the same effect as folding the original, except for the fields that only the
parent's queue needs. All change sets that are created from the same position share one tail blob.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any

from rebaser_core.branches.branch import Changed, Contested
from rebaser_core.branches.merge import definition_of
from rebaser_core.commit import Commit, Kind, TailRow
from rebaser_core.encoding.envelope import CBOR, Headers, MessageRegistry, dumps, loads, unwrap
from rebaser_core.encoding.payload import LIST, head, malformed, read_head
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit import COMMIT, check_is_commit
from rebaser_core.messages.commit_fields.origin import read_tail, write_tail
from rebaser_core.messages.delta import check_version, decode_delta, encode_updates_blob
from rebaser_core.updates import Remove, Set, Update

# Fields that concern only the parent's queue. A change set created from the parent does not need them.
_OF_QUEUE = {"requests", "authors", "reverts", "attempt", "forgetBeforeMs", "applied", "debt", "checkpoint", "carried"}
_OF_APPLY = _OF_QUEUE | {"from"}  # a `replay` commit needs `from`, which contains the new base of the branch
_PREFIX = dumps(CBOR, {"v1": {"commits": []}})[: -len(head(LIST, 0))]  # everything before the head of the rows
_peek = MessageRegistry((COMMIT,)).peek


def copy_row(sequence: int, headers: Headers, data: bytes) -> TailRow:
    """Return a copy of the commit in the message at log sequence `sequence`. If the message is not a commit, raise the
    same errors as `decode_commit`."""
    check_is_commit(headers)
    peeked = _peek(headers)
    body = unwrap(loads(peeked.content_type, data, COMMIT_LIMITS), peeked.version)
    left_out = _OF_QUEUE if body.get("kind") == Kind.REPLAY.value else _OF_APPLY
    kept = {name: value for name, value in body.items() if name not in left_out}
    origin = kept.get("origin")
    if type(origin) is dict:
        kept["origin"] = {name: value for name, value in origin.items() if name != "commits"}
    return TailRow(sequence, peeked.version, kept)


def read_row(row: TailRow) -> Commit | None:
    """Return the commit in `row`, or None if the copied message was not a commit. Raise the same errors as
    `decode_commit`."""
    if row.body is None:
        return None
    if row.version > COMMIT.current:
        raise UnsupportedVersion(
            f"a copied commit has version {row.version}, but this release reads versions up to {COMMIT.current}: "
            "use a newer release"
        )
    return COMMIT.decode_body(row.body, row.version, COMMIT_LIMITS)


def encode_tail(rows: tuple[TailRow, ...]) -> bytes:
    """Encode the tail of a branch as a blob, because it is too large for the `create` commit."""
    return dumps(CBOR, {"v1": {"commits": write_tail(rows)}})


def join_tails(first: bytes, second: bytes) -> bytes:
    """Return the encoded tail that has the rows of `first` and then those of `second`. Both are results of
    `encode_tail`, so that no row has to be decoded or encoded again."""
    rows, bodies = 0, []
    for data in (first, second):
        source = BytesIO(data)
        source.seek(len(_PREFIX))
        rows += read_head(source, LIST)
        bodies.append(source.read())
    return b"".join((_PREFIX, head(LIST, rows), *bodies))


def decode_tail(data: bytes) -> tuple[TailRow, ...]:
    """Decode the tail that `encode_tail` has encoded as `data`.

    Raise `UnprocessableError` if the blob is invalid, and `UnsupportedVersion` if its version is unknown.
    """
    raw = loads(CBOR, data, COMMIT_LIMITS)
    if type(raw) is not dict or len(raw) != 1:
        raise malformed("a blob of copied commits must be a map with its version as the only key")
    check_version(next(iter(raw)), 1)
    body = next(iter(raw.values()))
    if type(body) is not dict or body.keys() != {"commits"} or type(body["commits"]) is not list:
        raise malformed("a blob of copied commits must have a list in the field 'commits', and no other field")
    return read_tail(body["commits"])


def encode_changes(changes: Iterable[tuple[str, Changed]]) -> bytes:
    """Encode the changes of a branch as a blob. `changes` are pairs of an id and its change.

    The blob contains two updates for each id: its definition at the base, and its definition in the branch. A `Remove`
    stands for a value that does not exist. If the id is in conflict, two more updates follow: the definition that both
    sides replaced, and a `Set` to the sequence of the replay that recorded the conflict.
    """
    updates: list[Update] = []
    for id_, changed in changes:
        updates += (changed.base or Remove(id_), changed.here or Remove(id_))
        if changed.contested is not None:
            updates += (changed.contested.base or Remove(id_), Set(id_, changed.contested.recorded_at))
    return encode_updates_blob(updates)


def decode_changes(data: bytes) -> dict[str, Changed]:
    """Decode the changes of a branch that `encode_changes` has encoded as `data`. The result is keyed by id. Raise
    `UnprocessableError` if the blob is invalid."""
    updates: Sequence[Any] = decode_delta(Kind.REBASE, data)
    changes: dict[str, Changed] = {}
    for id_, group in groupby(updates, lambda update: update.id):
        found = list(group)
        if len(found) not in (2, 4) or id_ in changes:
            raise malformed("a blob with the changes of a branch must have two or four updates for each id")
        contested = Contested(definition_of(found[2]), _sequence(found[3])) if len(found) == 4 else None
        changes[id_] = Changed(definition_of(found[0]), definition_of(found[1]), contested)
    return changes


def _sequence(update: Update) -> int:
    if type(update) is not Set or type(update.value) is not int or update.value < 1:
        raise malformed("the log sequence of a conflict is not a positive number")
    return update.value


def check_tail(rows: Sequence[TailRow], after: int, until: int) -> list[Commit]:
    """Return the commits in `rows`, which must contain the part of a log after sequence `after`, up to `until`.

    Raise `UnprocessableError` if a commit is missing or out of order. Also raise the same errors as `read_row`.
    """
    commits: list[Commit] = []
    for row in rows:
        commit = read_row(row)
        if (commit is not None and commit.follows != after) or row.sequence <= after:
            raise malformed(f"the copied commit {row.sequence} does not follow commit {after}")
        if commit is not None:
            commits.append(commit)
        after = row.sequence
    if after != until:
        raise malformed(f"the copied commits end at commit {after}, but they must end at commit {until}")
    return commits
