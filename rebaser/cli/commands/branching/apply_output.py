"""Prints the output of `rebaser apply`: changes, conflicts, errors, and advice if nothing was applied."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rebaser.cli.errors import CommandFailed, refusal
from rebaser.cli.output import console
from rebaser_core.ids import ChangeSetKey
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import BranchChange, BranchDiff, BranchInfo, EnqueueUpdatesResponse, NewErrors, RequestRejected
    from rebaser_core.response import Conflict

SHOWN = 20  # maximum number of changes, or of errors, that are shown
STYLES = {1: "red", 2: "green"}


def show_changes(found: "BranchDiff", json: bool) -> None:
    """Show the changes that the branch would make to its target."""
    from rebaser.cli.output.change_format import definition_text

    info = found.info
    title = f"{info.change_set}@{info.sequence}, based on {info.target}@{info.base}"
    if found.target_sequence > info.base:
        title += f", compared with {info.target}@{found.target_sequence}"
    rows = [
        (change.id, definition_text(change.theirs), definition_text(change.ours), _mark(change))
        for change in found.changes[:SHOWN]
    ]
    if console.is_terminal() and not json:
        console.table(("id", f"{info.target} now", info.change_set, ""), rows, title=title, styles=STYLES)
    else:
        console.note(title)
        for id_, now, then, mark in rows:
            console.note(f"  {id_}: {now} becomes {then}" + (f" ({mark})" if mark else ""))
    if len(found.changes) > SHOWN:
        console.note(f"and {len(found.changes) - SHOWN:,} more")


def shows_the_same(one: "BranchDiff", other: "BranchDiff") -> bool:
    """Return whether `show_changes` would show the same changes to the same target, whatever their positions."""
    from rebaser_core.branches.merge import same_definition

    return (
        one.info.target == other.info.target
        and len(one.changes) == len(other.changes)
        and all(
            left.id == right.id
            and _mark(left) == _mark(right)
            and same_definition(left.theirs, right.theirs)
            and same_definition(left.ours, right.ours)
            for left, right in zip(one.changes, other.changes, strict=True)
        )
    )


def _mark(change: "BranchChange") -> str:
    if change.landed:
        return "already in the target"
    return "conflict" if change.moved else ""


def nothing_to_apply(info: "BranchInfo") -> str:
    """Return a message that says why there is nothing to apply."""
    name, target = info.change_set, info.target
    if info.status == "applied":
        return f"nothing to apply: {name} was applied; {target}@{info.base} has all of its edits"
    return f"nothing to apply: {name} has changed nothing since {target}@{info.base}"


def show_refused_conflicts(info: "BranchInfo", target: str, conflicts: "Sequence[Conflict]", json: bool) -> None:
    """Show the conflicts that made `target` refuse the branch. In these conflicts, `theirs` is the definition in the
    branch."""
    from rebaser.cli.commands.branching.conflicts import conflict_json, show_rows

    sides = [(one.id, one.sides) for one in conflicts if one.sides is not None]
    if json:
        for id_, side in sides:
            named = {target: side.ours, info.change_set: side.theirs}
            console.write_json(conflict_json(id_, side.base, named))  # type: ignore[arg-type] # never a `Remove`
        return
    show_rows(info, [(id_, side.base, side.ours, side.theirs) for id_, side in sides])  # type: ignore[misc] # never a `Remove`


def show_errors(found: "NewErrors", json: bool) -> None:
    """Show the errors that applying the branch would introduce into its target."""
    if json:
        for id_, fault in found.errors.items():
            console.write_json({"id": id_, "error": {"code": fault.code, "message": fault.message}})
        return
    rows = [(id_, fault.code, fault.message) for id_, fault in list(found.errors.items())[:SHOWN]]
    console.table(("id", "error", "message"), rows, styles={1: "red"})
    if len(found.errors) > SHOWN:
        console.note(f"and {len(found.errors) - SHOWN:,} more")


def show_success(
    info: "BranchInfo", target: str, response: "EnqueueUpdatesResponse", *, keep: bool, json: bool
) -> None:
    """Show the commit that applied the branch. `keep` says whether the branch stays open."""
    from rebaser_core.response import Success

    status = response.status
    assert isinstance(status, Success)  # noqa: S101 - the client raises any other status
    if json:
        source = {"changeSetId": info.change_set, "position": info.sequence}
        console.write_json(
            {
                "requestId": response.id,
                "changeSetId": target,
                "commit": status.commit,
                "updates": status.performed,
                "from": source,
            }
        )
        return
    updates = f"{status.performed:,} update{'' if status.performed == 1 else 's'}"
    console.write_line(
        f"{target}: commit {status.commit}: {updates} from {info.change_set}@{info.sequence} (request {response.id})"
    )
    console.note(f"to revert this: {command('revert', info.workspace, target, str(status.commit))}")
    if not keep:
        reopen = command("reopen", info.workspace, info.change_set)
        console.note(f"{info.change_set} is closed now, unless it was edited meanwhile; to edit it again: {reopen}")


def refused(
    error: "RequestRejected", info: "BranchInfo", target: str, *, pinned: bool, expected: bool
) -> CommandFailed:
    """Return an error that says why nothing was applied to `target`, and what to do.

    `pinned` says whether the user named the position of the branch (--at), and `expected` whether the user also named
    the position of the target that was seen (--expect).
    """
    workspace, name = info.workspace, info.change_set
    branch = command("branch", workspace, "NAME", options=("--from", target))
    again = f"create another branch from {target} (`{branch}`)"
    rebased = f"apply {name} again without --at, which rebases it first"
    if not pinned:  # each of several attempts was refused
        rebased = f"{target} is edited too often: apply {name} again later"
    seen = f"`{command('diff', workspace, name)}` shows both sides; then name the new positions with --at and --expect"
    advice = {
        "behind": rebased,
        "closed": f"`{command('reopen', workspace, name)}` opens it again; or {again}",
        "conflicts": rebased,
        "moved": seen if expected else rebased,
        "stale": "wait until they are up to date, or use --allow-stale",
        "unresolved": f"`{command('conflicts', workspace, name)}` shows them",
        "not_its_target": f"leave out --to; `{command('branches', workspace)}` shows the target of each branch",
        "too_large": "split the changes over several branches",
    }
    return refusal(f"nothing was applied to {target}", error, ChangeSetKey(workspace, name), advice)
