"""Defines the wire format of a commit's fields about conflicts: the conflicts that a `replay` commit records, and the
conflicts that the edits of a commit resolve.

Invariant: `read_replay` reads what `write_replay` wrote, and `decode_replay` reads what `encode_replay` wrote, without
any change.
"""

from collections.abc import Sequence
from typing import Any

from rebaser_core.commit import BranchStatus, Commit, Kind, Replay, Strategy
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.limits import Limits
from rebaser_core.messages.commit_fields.origin import read_blob, write_blob
from rebaser_core.messages.delta import decode_delta, encode_delta, read_delta, write_delta
from rebaser_core.updates import Update, check_id

_STRATEGIES = {str(strategy): strategy for strategy in Strategy}


def read_replay(
    kind: Kind, bases: dict[str, Any] | None, conflicts: dict[str, Any] | None, strategy: str | None, limits: Limits
) -> Replay | None:
    """Return the replay that a commit of `kind` records, or None if `kind` is not `replay`.

    If `bases` contains the address of a blob, this blob contains both the bases and the conflicts. Raise
    `UnprocessableError` if the fields are invalid, and `UnsupportedVersion` if the strategy is unknown.
    """
    if kind is not Kind.REPLAY:
        if bases is not None or conflicts is not None or strategy is not None:
            raise malformed(f"a {kind} commit must not have the fields 'bases', 'conflicts' or 'strategy'")
        return None
    known = Strategy.RECORD if strategy is None else _STRATEGIES.get(strategy)
    if known is None:
        raise UnsupportedVersion(
            f"a commit has the unknown strategy {str(strategy)[:40]!r}: use a newer release of Rebaser"
        )
    if bases is not None and "address" in bases:
        if conflicts is not None:
            raise malformed("if the field 'bases' refers to a blob, the conflicts must also be in that blob")
        return Replay(strategy=known, blob=read_blob(bases))
    replay = Replay(_updates(bases, limits), _updates(conflicts, limits), known)
    _check(replay)
    return replay


def _updates(raw: dict[str, Any] | None, limits: Limits) -> tuple[Update, ...]:
    return () if raw is None else tuple(read_delta(Kind.REPLAY, raw, limits))  # type: ignore[arg-type] # not of a DVU


def _check(replay: Replay) -> None:
    """Raise `UnprocessableError` if an id occurs twice in the bases or in the conflicts, or if an id of the conflicts
    is not in the bases."""
    ids, conflicts = {update.id for update in replay.bases}, {update.id for update in replay.conflicts}
    if len(ids) != len(replay.bases) or len(conflicts) != len(replay.conflicts) or not conflicts <= ids:
        raise malformed("every id in 'conflicts' must also be in 'bases', and no id may occur twice in either field")


def write_replay(replay: Replay, status: BranchStatus | None) -> dict[str, Any]:
    """Return the fields of a commit's wire map that `read_replay` reads, and the field `status` if it is set."""
    wire: dict[str, Any] = {} if status is None else {"status": status.value}
    if replay.blob is not None:
        wire["bases"] = write_blob(replay.blob)
    else:
        wire |= {"bases": write_delta(replay.bases)} if replay.bases else {}
        wire |= {"conflicts": write_delta(replay.conflicts)} if replay.conflicts else {}
    return wire if replay.strategy is Strategy.RECORD else wire | {"strategy": replay.strategy.value}


def encode_replay(replay: Replay) -> bytes:
    """Encode `replay` as a blob, because it is too large for its commit. The blob contains the bases and then the
    conflicts."""
    return encode_delta((*replay.bases, *replay.conflicts))


def decode_replay(data: bytes, strategy: Strategy) -> Replay:
    """Decode a replay that `encode_replay` has encoded as `data`. Raise `UnprocessableError` if `data` is not valid.

    If an id occurs twice, the first update is its base, and the second is its conflict.
    """
    updates: Sequence[Any] = decode_delta(Kind.REPLAY, data)
    bases: dict[str, Update] = {}
    conflicts: list[Update] = []
    for update in updates:
        if update.id in bases:
            conflicts.append(update)
        else:
            bases[update.id] = update
    replay = Replay(tuple(bases.values()), tuple(conflicts), strategy)
    _check(replay)
    if (*replay.bases, *replay.conflicts) != tuple(updates):
        raise malformed("the blob of a replay must contain all bases before the conflicts")
    return replay


def read_settled(kind: Kind, ids: list[Any], limits: Limits) -> tuple[str, ...]:
    """Return the ids whose conflicts are resolved by the edits of a commit of `kind`. Raise `UnprocessableError` if
    `ids` is not valid for such a commit."""
    if ids and kind is not Kind.REBASE:
        raise malformed(f"a {kind} commit must not have the field 'settled'; only rebase commits may have it")
    settled = tuple([check_id(id_, limits) for id_ in ids])
    if len(set(settled)) != len(settled):
        raise malformed("an id occurs twice in the field 'settled'")
    return settled


def write_settled(commit: Commit) -> dict[str, Any]:
    return {"settled": list(commit.settled)} if commit.settled else {}
