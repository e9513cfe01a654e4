"""`rebaser apply`: brings the changes of a branch into its target.

Invariant: unless `--yes` is given, the changes are shown before they are applied. Exactly the position that was shown
is applied, even if the branch is edited meanwhile.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import (
    DEFAULT_NATS,
    Author,
    Json,
    Message,
    Nats,
    Prefix,
    Workspace,
    checked_key,
    checked_position,
)
from rebaser_core.errors import UnprocessableError

if TYPE_CHECKING:
    from rebaser_client import (
        BranchChange,
        BranchDiff,
        EnqueueUpdatesResponse,
        NewErrors,
        RequestConflicts,
        RequestRejected,
    )
    from rebaser_client.log.positions import At
    from rebaser_core.ids import ChangeSetKey

SHOWN = 20  # changes
STYLES = {1: "red", 2: "green"}
CONFLICT_STYLES = {1: "dim", 2: "red", 3: "green"}


def apply(
    workspace: Workspace,
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch.")],
    *,
    to: Annotated[str | None, typer.Option(metavar="CS", help="Fail unless this is the target of the branch.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="P", help="Apply the branch as of this position: a log sequence, an age or a time."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the target was edited after the base of the branch.")
    ] = False,
    allow_stale: Annotated[
        bool, typer.Option("--allow-stale", help="Do not wait for the derived values of the branch.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Fail if a value is an error in the branch, but not in the target."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", allow_from_autoenv=False)
    ] = False,
    author: Author = "",
    message: Message = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Apply the changes of a branch to its target: all of them in one commit, or none.

    The command shows the changes and asks for confirmation. Edits that the target got since the base of the branch
    stay. If a value was edited on both sides, to different definitions, nothing is applied. The command then shows the
    definition at the base, in the target and in the branch, and the exit code is 1.

    First, it waits until the derived values of the branch are up to date. They are not applied: the target computes its
    own. `rebaser revert` takes an applied branch back.

    With --check, nothing is applied if a value is an error in the branch, but not in the target. The check reads all
    values of both. Together with --strict it is exact, because the target then becomes what the branch is.
    """
    if check and allow_stale:
        raise usage_error("needs derived values that are up to date: leave out --allow-stale", "--check")
    key = checked_key(workspace, branch)
    if to is not None:
        checked_key(workspace, to)
    position = None if at is None else checked_position(workspace, f"{branch}@{at}")[1]
    return _Apply(key, to, position, strict, allow_stale, check, yes, author, message, timeout, json).run(nats, prefix)


@dataclass(slots=True)
class _Apply:
    key: "ChangeSetKey"
    to: str | None
    at: "At | None"
    strict: bool
    allow_stale: bool
    check: bool
    yes: bool
    author: str
    message: str
    timeout: float
    json: bool
    found: "BranchDiff | None" = None
    response: "EnqueueUpdatesResponse | None" = None
    conflicts: "RequestConflicts | None" = None
    refused: "RequestRejected | None" = None
    errors: "NewErrors | None" = None

    @property
    def target(self) -> str:
        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        return self.to or str(self.found.info.target)

    def run(self, nats: str, prefix: str) -> int:
        from rebaser.cli.runner import run_async

        if not self.yes and not sys.stdin.isatty():
            raise usage_error("add --yes to apply without confirmation, because stdin is not a terminal")
        code = run_async(partial(self._find, nats, prefix))
        if code:
            return code
        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        if not self.found.changes:
            info = self.found.info
            console.note(f"nothing to apply: {info.change_set} has changed nothing since {info.target}@{info.base}")
            return 0
        # Asked while no event loop runs: in a thread beside a running one, Ctrl-C would not end the question.
        if not self.yes and not typer.confirm(f"apply this to {self.target}?", err=True):
            raise CommandFailed("not confirmed: nothing was applied")
        code = run_async(partial(self._apply, nats, prefix))
        if code:
            return code
        if self.conflicts is not None:
            self._show_conflicts(self.conflicts)
            reason = self.conflicts.response.status.message  # type: ignore[union-attr] # a conflict is no success
            raise CommandFailed(f"nothing was applied to {self.target}: {reason}; {self._way_on()}")
        if self.errors is not None:
            self._show_errors(self.errors)
            raise CommandFailed(
                f"nothing was applied to {self.target}: {self.errors.message}; "
                f"correct them in {self.key.change_set}, or apply without --check"
            )
        if self.refused is not None:
            raise CommandFailed(self._advice(self.refused))
        self._show_success()
        return 0

    async def _find(self, nats: str, prefix: str) -> None:
        """Find the changes. Show them if the user is asked to confirm them, or if stdout is a terminal."""
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            try:
                self.found = await client.changes(self.key.workspace, self.key.change_set, at=self.at)
            except UnprocessableError as error:
                raise CommandFailed(f"nothing was applied: {error.message}") from None
        if self.found.changes and (not self.yes or console.is_terminal()):
            self._show_changes(self.found)

    async def _apply(self, nats: str, prefix: str) -> None:
        from rebaser.cli.connect import connect_client
        from rebaser_client import NewErrors, RequestConflicts, RequestRejected

        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        async with connect_client(nats, prefix) as client:
            try:
                self.response = await client.apply(
                    *(self.key.workspace, self.key.change_set),
                    to=self.to,
                    at=self.found.info.sequence,
                    strict=self.strict,
                    allow_stale=self.allow_stale,
                    check=self.check,
                    author=self.author,
                    message=self.message,
                    timeout=self.timeout,
                )
            except RequestConflicts as error:
                self.conflicts = error
            except RequestRejected as error:
                self.refused = error
            except NewErrors as error:
                self.errors = error

    def _show_changes(self, found: "BranchDiff") -> None:
        from rebaser.cli.change_format import definition_text

        info = found.info
        title = f"{info.change_set}@{info.sequence}, based on {info.target}@{info.base}"
        rows = [
            (change.id, definition_text(change.theirs), definition_text(change.ours), _mark(change))
            for change in found.changes[:SHOWN]
        ]
        if console.is_terminal() and not self.json:
            console.table(("id", f"{info.target} now", info.change_set, ""), rows, title=title, styles=STYLES)
        else:
            console.note(title)
            for id_, now, then, mark in rows:
                console.note(f"  {id_}: {now} becomes {then}" + (f" ({mark})" if mark else ""))
        if len(found.changes) > SHOWN:
            console.note(f"and {len(found.changes) - SHOWN:,} more")

    def _show_conflicts(self, error: "RequestConflicts") -> None:
        from rebaser.cli.change_format import definition_json, definition_text

        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        sides = [(one.id, one.sides) for one in error.conflicts if one.sides is not None]
        if self.json:
            for id_, side in sides:
                parts = {"base": side.base, "ours": side.ours, "theirs": side.theirs}
                console.write_json(
                    {"id": id_} | {name: definition_json(part) for name, part in parts.items()}  # type: ignore[arg-type] # no removals
                )
            return
        rows = [(id_, *map(definition_text, (side.base, side.ours, side.theirs))) for id_, side in sides]  # type: ignore[arg-type] # no removals
        titles = ("id", f"base ({self.target}@{self.found.info.base})", self.target, self.key.change_set)
        console.table(titles, rows, styles=CONFLICT_STYLES)

    def _show_errors(self, found: "NewErrors") -> None:
        if self.json:
            for id_, fault in found.errors.items():
                console.write_json({"id": id_, "error": {"code": fault.code, "message": fault.message}})
            return
        rows = [(id_, fault.code, fault.message) for id_, fault in list(found.errors.items())[:SHOWN]]
        console.table(("id", "error", "message"), rows, styles={1: "red"})
        if len(found.errors) > SHOWN:
            console.note(f"and {len(found.errors) - SHOWN:,} more")

    def _show_success(self) -> None:
        from rebaser_core.response import Success

        assert self.found is not None  # noqa: S101 - `_find` sets it or raises
        assert self.response is not None  # noqa: S101 - `_apply` sets it if there is no error
        status, info = self.response.status, self.found.info
        assert isinstance(status, Success)  # noqa: S101 - the client raises everything else
        if self.json:
            source = {"changeSetId": info.change_set, "position": info.sequence}
            console.write_json(
                {
                    "requestId": self.response.id,
                    "changeSetId": self.target,
                    "commit": status.commit,
                    "updates": status.performed,
                    "from": source,
                }
            )
            return
        updates = f"{status.performed:,} update{'' if status.performed == 1 else 's'}"
        console.write_line(
            f"{self.target}: commit {status.commit}: {updates} from {info.change_set}@{info.sequence} "
            f"(request {self.response.id})"
        )
        console.note(f"to take this back: rebaser revert {self.key.workspace} {self.target} {status.commit}")

    def _way_on(self) -> str:
        name, target = self.key.change_set, self.target
        return (
            f"give these values in {name} the definitions of {target}, and apply {name} again; or create another branch"
            f" from {target}, and edit them there"
        )

    def _advice(self, error: "RequestRejected") -> str:
        """Return why nothing was applied, and what to do."""
        reason = error.response.status.message  # type: ignore[union-attr] # a rejection is no success
        workspace, name, target = self.key.workspace, self.key.change_set, self.target
        again = f"create another branch from {target} (`rebaser branch {workspace} NAME --from {target}`)"
        advice = {
            "closed": f"{again}, and edit that one",
            "moved": f"apply without --strict, or {again}",
            "stale": f"{again} for further edits" if " was applied " in reason else "wait, or use --allow-stale",
            "not_its_target": f"leave out --to; `rebaser branches {workspace}` shows the target of each branch",
            "purged": f"`rebaser status {workspace} {name}` shows how far back its history reaches",
            "too_large": "split the changes over several branches",
            "unsupported": "set REBASER_HISTORY_FOR on the servers",
        }.get(error.code)
        return f"nothing was applied to {target}: {reason}" + (f"; {advice}" if advice else "")


def _mark(change: "BranchChange") -> str:
    from rebaser_core.merge import same_definition

    if same_definition(change.ours, change.theirs):
        return "is there already"
    return "conflict" if change.moved else ""
