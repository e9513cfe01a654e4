"""States that hold everything that a checkpoint can hold, and the files of their checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rebaser_core.blobs.address import address_of
from rebaser_core.checkpoint import open_checkpoint, read_checkpoint
from rebaser_core.commit import (
    PULL_ATTEMPT,
    Applied,
    Attempt,
    Commit,
    Computed,
    Kind,
    Marking,
    Origin,
    Source,
)
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Recompute, Remove, Set
from rebaser_core.values import Fault
from tests.support.checkpoints import Stored
from tests.support.example_messages import AT, BASE, DECISIONS, ID, OWNER, REDRIVEN, STREAM, UPDATES

FOLDER = Path(__file__).parents[1] / "wire" / "golden"


def state() -> ChangeSetState:
    """Return a state that has every kind of content that a checkpoint can hold."""
    made = ChangeSetState()
    made.fold(3, Commit(ID, 0, Kind.REBASE, AT, OWNER, Applied(STREAM, 12), 0, DECISIONS, UPDATES))
    made.fold(5, Commit(ID, 3, Kind.DVU, AT + 1, OWNER, Applied(STREAM, 12), 3, delta=(Computed("cart/1/net", 7.98),)))
    fault = Fault("missing_input", "cart/2/price does not exist", "cart/total")
    made.fold(6, Commit(ID, 5, Kind.DVU, AT + 2, OWNER, None, 3, delta=(Computed("cart/total", None, fault),)))
    redone = Derive("cart/count", "count", {"values": ("cart/1/price",)}, {"of": [1, {"deep": True}]})
    made.fold(8, Commit(ID, 6, Kind.REBASE, AT + 3, OWNER, Applied(STREAM, 13), 3, delta=(redone, Remove("flags"))))
    made.fold(9, Commit(ID, 8, Kind.ATTEMPT, AT + 4, OWNER, None, 3, attempt=Attempt(14, 1, AT + 4)))
    return made


def redriven_state() -> ChangeSetState:
    """Return the result of `state` after dead letters were redriven."""
    return redriven(state())


def redriven(made: ChangeSetState) -> ChangeSetState:
    made.fold(10, Commit(ID, 9, Kind.REBASE, AT + 5, OWNER, Applied(STREAM, 16), 3, REDRIVEN))
    made.fold(11, Commit(ID, 10, Kind.ATTEMPT, AT + 6, OWNER, None, 3, attempt=Attempt(17, 0, AT + 6, 2)))
    return made


def edited(made: ChangeSetState) -> ChangeSetState:
    """Return the result of `redriven_state`, made from a `state`, after some edits."""
    twice = Derive("twice", "sum", {"values": ("cart/1/qty", "new", "cart/1/qty")}, {})
    asked = (Recompute("company.rate"),)
    edits = (Set("cart/1/price", 10.5), Remove("straße/☃"), Set("new", "text"), twice)
    redriven(made).fold(
        12, Commit(ID, 11, Kind.REBASE, AT + 7, OWNER, Applied(STREAM, 17), 3, (), edits, recompute=asked)
    )
    return made


def branched() -> ChangeSetState:
    """Return a branch of `state` that is protected, took another branch, and whose last pull failed."""
    made = state()
    origin = Origin(BASE, 9, BASE, 9, follows=True)
    made.fold(13, Commit(ID, 0, Kind.CREATE, AT + 5, OWNER, Applied(STREAM, 20), 3, DECISIONS[1:2], origin=origin))
    taken = Commit(ID, 13, Kind.REBASE, AT + 6, OWNER, Applied(STREAM, 21), 3, DECISIONS[2:3], source=Source("ann", 7))
    made.fold(15, replace(taken, delta=(Set("new", 1),), before=()))
    made.fold(16, Commit(ID, 15, Kind.MARK, AT + 7, OWNER, None, 3, marking=Marking(protected=True)))
    made.fold(17, Commit(ID, 16, Kind.ATTEMPT, AT + 8, OWNER, None, 3, attempt=Attempt(PULL_ATTEMPT, 0, AT + 8, 2)))
    return made


def branch_part() -> bytes:
    (data,) = Stored().write(branched()).parts
    return data


def first_part(worthwhile: int = Thresholds().uncompressed_max_rows, *, tracked: bool = True) -> bytes:
    with forced(Thresholds(uncompressed_max_rows=worthwhile)):
        (data,) = Stored().write(state(), tracked=tracked).parts
    return data


def second_part(*, tracked: bool = True, base_tracked: bool = True) -> bytes:
    stored, made = Stored(), state()
    stored.write(made, tracked=base_tracked)
    (data,) = stored.write(edited(made), tracked=tracked).parts
    assert len(stored.chain.deltas) == 1
    return data


def read_part(_: dict[str, str], data: bytes) -> dict[str, Any]:
    """Return the content of the checkpoint whose last file is `data`."""
    known = {address_of(part): part for path in FOLDER.glob("*.arrow") for part in [path.read_bytes()]}
    return parts(read_checkpoint(data, [known[part.address] for part in open_checkpoint(data).before]))


def parts(folded: ChangeSetState) -> dict[str, Any]:
    """Return what a checkpoint of the state must restore: `outcomes` in their order, everything else without an
    order."""
    cells = folded.cells
    named = {input_id for cell in cells.values() for input_id in cell.inputs}
    dependents = {id_: sorted(cells.dependents(id_)) for id_ in sorted(named)}
    return {
        "last": folded.last,
        "covers": folded.covers,
        "applied": folded.applied,
        "cells": sorted(cells.items(), key=lambda item: item[0]),
        "dependents": dependents,
        "roots": sorted(folded.roots.items()),
        "recompute": list(folded.recompute.items()),
        "outcomes": list(folded.outcomes.items()),
        "redriven": list(folded.redriven.items()),
        "attempts": sorted(folded.attempts.items()),
        "edited": (folded.edited, folded.untracked),
        # The changes and conflicts are in a blob of their own.
        "branch": None if folded.branch is None else replace(folded.branch, changes={}, conflicts={}),
        "taken": folded.taken,
        "guarded": (folded.protected, folded.born_ms),
    }


def untracked(folded: ChangeSetState, since: int | None = None) -> ChangeSetState:
    """Return `folded` as it is restored from a format that does not record when a value was last defined. Its
    checkpoint was written at log sequence `since` (None: after all commits)."""
    since = folded.last if since is None else since
    edited_at = folded.cells.columns.edited
    edited_at[edited_at <= since] = 0
    folded.edited, folded.untracked = max(folded.edited, since), since
    return folded
