"""The tail of a branch, and the blobs of branches.

The tail of a branch consists of the commits in the parent's log between the checkpoint of the parent and the position
from which the branch was created. They are copied into the `create` commit of the branch.

Invariant: a copied commit folds as the original does, except for the fields that only the parent's queue needs. All
change sets that are created from one position name the same blob as their tail.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rebaser_core.branches.branch import Changed, Contested
from rebaser_core.branches.merge import definition_of
from rebaser_core.commit import Commit, Kind, TailRow
from rebaser_core.encoding.envelope import CBOR, Headers, MessageRegistry, dumps, loads, unwrap
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit import COMMIT, check_is_commit
from rebaser_core.messages.commit_fields.origin import read_tail, write_tail
from rebaser_core.messages.delta import check_version, decode_delta, encode_updates_blob
from rebaser_core.updates import Remove, Set, Update

# Fields that concern only the parent's queue. A change set created from the parent does not need them.
_OF_QUEUE = {"requests", "authors", "reverts", "attempt", "forgetBeforeMs", "applied", "debt", "checkpoint", "carried"}
_OF_APPLY = _OF_QUEUE | {"from"}  # but in a replay, `from` is needed: it is the new base of the branch
_peek = MessageRegistry((COMMIT,)).peek


def copy_row(sequence: int, headers: Headers, data: bytes) -> TailRow:
    """Return the row that copies the commit in a message. Raises the errors of `decode_commit` if the message is not a
    commit."""
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
    """Return the commit in a copied row; None if the message was not a commit. Raises the errors of `decode_commit`."""
    if row.body is None:
        return None
    if row.version > COMMIT.current:
        raise UnsupportedVersion(
            f"a copied commit has version {row.version}; this program reads versions up to {COMMIT.current}"
        )
    return COMMIT.decode_body(row.body, row.version, COMMIT_LIMITS)


def encode_tail(rows: tuple[TailRow, ...]) -> bytes:
    """Encode the tail of a branch as a blob, because the tail is too large for the `create` commit."""
    return dumps(CBOR, {"v1": {"commits": write_tail(rows)}})


def decode_tail(data: bytes) -> tuple[TailRow, ...]:
    """Decode a blob of `encode_tail`; raises `UnprocessableError`, or `UnsupportedVersion`."""
    raw = loads(CBOR, data, COMMIT_LIMITS)
    if type(raw) is not dict or len(raw) != 1:
        raise malformed("a blob of copied commits must be a map with its version as the only key")
    check_version(next(iter(raw)), 1)
    body = next(iter(raw.values()))
    if type(body) is not dict or body.keys() != {"commits"} or type(body["commits"]) is not list:
        raise malformed("a blob of copied commits must have a list of them")
    return read_tail(body["commits"])


def encode_changes(changes: Iterable[tuple[str, Changed]]) -> bytes:
    """Encode the changes of a branch, by id, as a blob.

    It is a blob of updates, two for each id: the definition at the base and the definition in the branch. If there is
    no such definition, the update is a removal. If the id is in conflict, two more updates follow: the definition that
    both sides replaced, and an update whose value is the sequence of the replay that recorded the conflict.
    """
    updates: list[Update] = []
    for id_, changed in changes:
        updates += (changed.base or Remove(id_), changed.here or Remove(id_))
        if changed.contested is not None:
            updates += (changed.contested.left or Remove(id_), Set(id_, changed.contested.told))
    return encode_updates_blob(updates)


def decode_changes(data: bytes) -> dict[str, Changed]:
    """Decode a blob of `encode_changes`; raises `UnprocessableError`."""
    updates: Sequence[Any] = decode_delta(Kind.REBASE, data)
    changes: dict[str, Changed] = {}
    for id_, group in groupby(updates, lambda update: update.id):
        found = list(group)
        if len(found) not in (2, 4) or id_ in changes:
            raise malformed("the changes of a branch must have two or four updates for each id")
        contested = Contested(definition_of(found[2]), _sequence(found[3])) if len(found) == 4 else None
        changes[id_] = Changed(definition_of(found[0]), definition_of(found[1]), contested)
    return changes


def _sequence(update: Update) -> int:
    if type(update) is not Set or type(update.value) is not int or update.value < 1:
        raise malformed("the sequence of a conflict is not a positive number")
    return update.value


def check_tail(rows: Sequence[TailRow], after: int, until: int) -> list[Commit]:
    """Check that `rows` continue a log from `after` to `until` without a gap, and return the commits in them.

    Raises the errors of `read_row`.
    """
    commits: list[Commit] = []
    for row in rows:
        commit = read_row(row)
        if (commit is not None and commit.follows != after) or row.sequence <= after:
            raise malformed(f"the copied commit {row.sequence} does not follow {after}")
        if commit is not None:
            commits.append(commit)
        after = row.sequence
    if after != until:
        raise malformed(f"the copied commits end at {after}, not at {until}")
    return commits
