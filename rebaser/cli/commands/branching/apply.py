"""`rebaser apply`: applies the changes of a branch to its target.

Invariant: unless `--yes` is given, the changes are shown before they are applied. The command applies the branch
exactly at the position that it has shown, even if the branch is edited in the meantime. If the target is edited in the
meantime, the command asks again, unless the changes are still those that it has shown.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.commands.branching.apply_output import (
    nothing_to_apply,
    refused,
    show_changes,
    show_errors,
    show_refused_conflicts,
    show_success,
    shows_the_same,
)
from rebaser.cli.commands.branching.conflicts import show_found
from rebaser.cli.commands.branching.rebase import rebase_refused
from rebaser.cli.completion import complete_target
from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import (
    DEFAULT_NATS,
    AnswerTimeout,
    Author,
    Branch,
    Json,
    Message,
    Nats,
    Prefix,
    Workspace,
    checked_key,
    checked_position,
)
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError

if TYPE_CHECKING:
    from rebaser_client import (
        BranchConflict,
        BranchDiff,
        BranchInfo,
        EnqueueUpdatesResponse,
        NewErrors,
        RebaserClient,
        RequestRejected,
    )
    from rebaser_client.log.positions import At
    from rebaser_core.ids import ChangeSetKey

ATTEMPTS = 5  # maximum number of attempts, each of which fails if the target is edited after the rebase


def apply(
    workspace: Workspace,
    branch: Branch,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="CS", help="Fail unless this is the target of the branch.", autocompletion=complete_target
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="P", help="Apply the branch as of this position: a log sequence, an age or a time."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="CS@P",
            help="Fail if the target was edited after this log sequence. Needs --at.",
            autocompletion=complete_target,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the target has edits that the branch does not have.")
    ] = False,
    allow_stale: Annotated[
        bool, typer.Option("--allow-stale", help="Do not wait for the derived values of the branch.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Fail if a value is in error in the branch, but not in the target."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not close the branch.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", allow_from_autoenv=False)
    ] = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Apply the changes of a branch to its target: all of them in one commit, or none.

    First, the branch is rebased if its target was edited after its base. If both sides gave a value different
    definitions, this is a conflict: the command shows it, applies nothing, and ends with the exit code 1. `rebaser
    resolve` settles conflicts. If there are none, the command shows the changes and asks for confirmation. It applies
    exactly the changes that it has shown. If the target is edited in the meantime, the command rebases the branch, and
    asks again if the changes are no longer the same.

    The command waits until the derived values of the branch are up to date. They are not applied, because the target
    computes its own. After the apply, the branch is closed, unless it was edited in the meantime or --keep is given. To
    undo an apply, use `rebaser revert`. With --at, the branch is applied as it was at a position, and is not rebased.

    To apply exactly what was reviewed elsewhere, give both positions that were seen, such as --at 12 --expect main@9.
    If the target was edited after its position, nothing is applied.

    With --check, nothing is applied if a value is in error in the branch, but not in the target. The check reads all
    values of both change sets. With --strict, it is exact, because the target then becomes equal to the branch.
    """
    if check and allow_stale:
        raise usage_error("needs derived values that are up to date: leave out --allow-stale", "--check")
    key = checked_key(workspace, branch)
    if to is not None:
        checked_key(workspace, to)
    position = None if at is None else checked_position(workspace, f"{branch}@{at}")[1]
    seen = None if expect is None else _expected(workspace, expect, at)
    how = (strict, allow_stale, check, keep, yes)
    return _Apply(key, to, position, seen, *how, author, message, timeout, json).run(nats, prefix)


def _expected(workspace: str, expect: str, at: str | None) -> tuple[str, int]:
    """Return the change set and the log sequence that `--expect` names."""
    key, position = checked_position(workspace, expect)
    if type(position) is not int:
        raise usage_error("name the target and a log sequence of it, such as main@9", "--expect")
    if at is None:
        raise usage_error("also give the position of the branch that was seen, with --at", "--expect")
    return key.change_set, position


@dataclass(slots=True)
class _Apply:
    key: "ChangeSetKey"
    to: str | None
    at: "At | None"
    seen: tuple[str, int] | None  # the change set and its log sequence that `--expect` names
    strict: bool
    allow_stale: bool
    check: bool
    keep: bool
    yes: bool
    author: str
    message: str
    timeout: float
    json: bool
    found: "BranchDiff | None" = None
    confirmed: "BranchDiff | None" = None  # the changes that the user has confirmed
    open_conflicts: "tuple[BranchConflict, ...]" = ()
    response: "EnqueueUpdatesResponse | None" = None
    refused: "RequestRejected | None" = None
    errors: "NewErrors | None" = None

    @property
    def target(self) -> str:
        return self.to or str(self.info.target)

    @property
    def info(self) -> "BranchInfo":
        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        return self.found.info

    def run(self, nats: str, prefix: str) -> int:
        if not self.yes and not sys.stdin.isatty():
            raise usage_error("add --yes to apply without confirmation, because stdin is not a terminal")
        for attempt in range(1, ATTEMPTS + 1):
            code = self._attempt(nats, prefix, last=attempt == ATTEMPTS)
            if code is not None:
                return code
            if attempt < ATTEMPTS:
                again = "rebasing" if self.at is None else "comparing"
                console.note(f"{self.target} was edited meanwhile: {again} {self.key.change_set} again")
        assert self.refused is not None  # noqa: S101 - `_attempt` sets it if it returns None
        raise self._refused(self.refused)

    def _attempt(self, nats: str, prefix: str, *, last: bool) -> int | None:
        """Rebase the branch, show its changes, ask for confirmation, and apply it. Return the exit code, or None if the
        target was edited in the meantime. `last` is true if no further attempt will follow."""
        from rebaser.cli.runner import run_async
        from rebaser_client import RequestConflicts

        code = run_async(partial(self._find, nats, prefix))
        if code:
            return code
        if self.seen is not None and self.seen[0] != self.target:
            raise usage_error(
                f"{self.seen[0]} is not the target of {self.key.change_set}: name {self.target}", "--expect"
            )
        if self.open_conflicts:
            raise CommandFailed(self._in_conflict())
        if self.found is None or not self.found.changes:
            console.note(nothing_to_apply(self.info))
            return 0
        # Ask while no event loop is running. Otherwise, the prompt would need a thread, in which Ctrl-C cannot end it.
        if not self.yes and not self._is_confirmed() and not typer.confirm(f"apply this to {self.target}?", err=True):
            raise CommandFailed("not confirmed: nothing was applied")
        self.confirmed = self.found
        code = run_async(partial(self._apply, nats, prefix, self._expect_at(last=last)))
        if code:
            return code
        if self.errors is not None:
            show_errors(self.errors, self.json)
            raise CommandFailed(
                f"nothing was applied to {self.target}: {self.errors.message}; "
                f"correct these values in {self.key.change_set}, or apply without --check"
            )
        if self.refused is not None:
            if self._target_was_edited(self.refused.code):
                return None
            if isinstance(self.refused, RequestConflicts):
                show_refused_conflicts(self.info, self.target, self.refused.conflicts, self.json)
            raise self._refused(self.refused)
        assert self.response is not None  # noqa: S101 - `_apply` sets it if there is no error
        show_success(self.info, self.target, self.response, keep=self.keep, json=self.json)
        return 0

    async def _find(self, nats: str, prefix: str) -> None:
        """Rebase the branch and load its changes. Show them if the user must confirm, or if stdout is a terminal."""
        from rebaser.cli.connect import connect_client
        from rebaser_client import RequestRejected

        workspace, name = self.key.workspace, self.key.change_set
        async with connect_client(nats, prefix) as client:
            try:
                info = await client.branch(workspace, name, at=self.at)
                if self.at is None and info is not None and info.status == "open" and info.target is not None:
                    await self._rebase(client)
                self.found = await client.changes(workspace, name, at=self.at)
                if self.found.info.conflicts:
                    found = await client.conflicts(workspace, name, at=self.found.info.sequence)
                    self.open_conflicts = found.conflicts
            except RequestRejected as error:
                raise rebase_refused(error, self.key) from None
            except UnprocessableError as error:
                raise CommandFailed(f"nothing was applied: {error.message}") from None
        shows = (not self.yes or console.is_terminal()) and not self._is_confirmed()
        if self.found.changes and not self.open_conflicts and shows:
            show_changes(self.found, self.json)

    async def _rebase(self, client: "RebaserClient") -> None:
        """Rebase the branch, unless it was closed in the meantime. A later step reports that the branch is closed."""
        from rebaser_client import RequestRejected

        workspace, name = self.key.workspace, self.key.change_set
        try:
            rebased = await client.rebase(workspace, name, author=self.author, timeout=self.timeout)
        except RequestRejected as error:
            if error.code != "closed":
                raise
            return
        if rebased.commit is not None:
            console.note(f"{name}: rebased onto {rebased.target}@{rebased.base}")

    async def _apply(self, nats: str, prefix: str, expect_at: int | None) -> None:
        from rebaser.cli.connect import connect_client
        from rebaser_client import NewErrors, RequestRejected

        self.refused = None
        async with connect_client(nats, prefix) as client:
            try:
                self.response = await client.apply(
                    *(self.key.workspace, self.key.change_set),
                    to=self.to,
                    at=self.info.sequence,
                    expect_at=expect_at,
                    strict=self.strict,
                    allow_stale=self.allow_stale,
                    check=self.check,
                    keep=self.keep,
                    author=self.author,
                    message=self.message,
                    timeout=self.timeout,
                )
            except RequestRejected as error:
                self.refused = error
            except NewErrors as error:
                self.errors = error

    def _is_confirmed(self) -> bool:
        """Return whether the user has already confirmed the changes that were found."""
        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        return self.confirmed is not None and shows_the_same(self.confirmed, self.found)

    def _expect_at(self, *, last: bool) -> int | None:
        """Return the log sequence after which the target must not have been edited: the one that `--expect` names, or
        the one as of which the changes were compared.

        The last attempt has no such condition. Otherwise, a target that is edited all the time would refuse each of
        them. It still applies only the changes that the user has confirmed: if the target was edited in one of these
        values, this is a conflict.
        """
        if self.seen is not None:
            return self.seen[1]
        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        return None if self.yes or last else self.found.target_sequence

    def _target_was_edited(self, code: str) -> bool:
        """Return whether an edit of the target may have caused the refusal with this `code`, so that another attempt
        may succeed."""
        if self.seen is not None or self.info.status != "open":
            return False
        if self.at is None:
            return code in ("behind", "conflicts", "moved")
        return code == "moved" and not self.yes and not self.strict  # without a rebase, nothing else can change

    def _refused(self, error: "RequestRejected") -> CommandFailed:
        pinned, expected = self.at is not None, self.seen is not None
        return refused(error, self.info, self.target, pinned=pinned, expected=expected)

    def _in_conflict(self) -> str:
        """Show the conflicts of the branch, and return the message that says why nothing was applied."""
        show_found(self.info, self.open_conflicts, self.json)
        count = len(self.open_conflicts)
        return (
            f"nothing was applied to {self.target}: {self.key.change_set} has {count:,} "
            f"conflict{'' if count == 1 else 's'} with it; settle {'it' if count == 1 else 'them'}, and apply again"
        )
