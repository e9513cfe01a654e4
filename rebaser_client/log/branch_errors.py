"""The errors for change sets that do not exist, or are not branches."""

from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.shell import command


def no_change_set(key: ChangeSetKey) -> UnprocessableError:
    """Return the error for a change set that does not exist."""
    name = f"{key.workspace}/{key.change_set}"
    return UnprocessableError(
        f"there is no change set {name}: `{command('branches', key.workspace)}` lists change sets",
        code="no_such_change_set",
    )


def not_a_branch(key: ChangeSetKey) -> UnprocessableError:
    """Return the error for a change set without a target, which has no changes, and cannot be rebased or applied."""
    name, of = f"{key.workspace}/{key.change_set}", ("--from", key.change_set)
    return UnprocessableError(
        f"{name} is not a branch of another change set: `{command('branches', key.workspace)}` shows which are, "
        f"`{command('branch', key.workspace, 'NAME', options=of)}` creates a branch of it",
        code="not_a_branch",
    )
