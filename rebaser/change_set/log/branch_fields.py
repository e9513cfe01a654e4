"""Computes the fields of a commit that describe the branch. The commit repeats them in its headers, for readers that
read only headers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rebaser_core.branches.branch import Branch
from rebaser_core.commit import CheckpointRef, Kind
from rebaser_core.state.change_set import ChangeSetState


def about_branch(
    state: ChangeSetState, kind: Kind, checkpoint: CheckpointRef | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a commit that describe the branch and its edits, by name.

    The commit follows `state`; if the commit replaces the state, `state` is the new state. `checkpoint` is the
    checkpoint to which the commit refers. `fields` are the other fields of the commit.
    """
    if kind is Kind.CREATE:
        return {}
    branch, marking = state.branch, fields.get("marking")
    edits = fields.get("delta", ()) if kind in (Kind.REBASE, Kind.REPLAY) else ()
    if edits and branch is None and marking is None and not state.protected:
        return {}  # true of most commits
    about: dict[str, Any] = {} if edits else {"edited": state.edited}
    if state.protected if marking is None or marking.protected is None else marking.protected:
        about["protected"] = True
    if marking is not None and marking.status is not None:
        branch = replace(branch or Branch(0), status=marking.status)
    if branch is not None:
        inherited = checkpoint is None or checkpoint.sequence < branch.birth
        about |= {"begin": branch.birth if inherited else 0, "branch": branch.summary(edits, fields.get("settled", ()))}
    return about
