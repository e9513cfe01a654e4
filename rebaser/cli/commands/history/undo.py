"""`rebaser undo` and `rebaser redo`: revert the user's newest request or newest undo.

Invariant: unless `--yes` is given, the request is shown before it is reverted. Exactly this request is reverted, even
if the user has sent a newer request in the meantime.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import (
    DEFAULT_NATS,
    AnswerTimeout,
    Author,
    ChangeSet,
    Json,
    Message,
    Nats,
    Prefix,
    Workspace,
    checked_key,
)
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import EnqueueUpdatesResponse, RebaserClient, RequestConflicts, UndoStep
    from rebaser_client.log.changes import Change
    from rebaser_core.ids import ChangeSetKey

SHOWN = 20  # maximum number of changes that are shown
STYLES = {1: "red", 2: "green"}

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", allow_from_autoenv=False)]


def undo(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    yes: Yes = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Undo your newest request: each value that it edited gets its earlier definition again.

    Your requests are those of the given author or, without --author, those without an author. The command shows the
    request and asks for confirmation. It skips reverts, and requests that have already been reverted, so the next undo
    reverts an earlier request. `rebaser redo` reverts an undo. If one of the values has been edited again since,
    nothing is reverted; the command shows the conflicts like `rebaser revert`, and the exit code is 1.
    """
    return _Revert("undo", checked_key(workspace, change_set), yes, author, message, timeout, json).run(nats, prefix)


def redo(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    yes: Yes = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Revert your newest undo: the request that it reverted is applied again.

    Your undos are those of the given author or, without --author, those without an author. The command shows the undo
    and asks for confirmation. Once you have sent another edit, there is nothing to redo.
    """
    return _Revert("redo", checked_key(workspace, change_set), yes, author, message, timeout, json).run(nats, prefix)


@dataclass(slots=True)
class _Revert:
    verb: Literal["undo", "redo"]
    key: "ChangeSetKey"
    yes: bool
    author: str
    message: str
    timeout: float
    json: bool
    step: "UndoStep | None" = None
    response: "EnqueueUpdatesResponse | None" = None
    conflicts: "RequestConflicts | None" = None

    def run(self, nats: str, prefix: str) -> int:
        from rebaser.cli.commands.history.revert import show_conflicts, show_success, show_way_on
        from rebaser.cli.runner import run_async

        if not self.yes and not sys.stdin.isatty():
            raise usage_error(f"add --yes to {self.verb} without confirmation, because stdin is not a terminal")
        code = run_async(partial(self._find, nats, prefix))
        # Ask while no event loop is running. Otherwise, the prompt would need a thread, in which Ctrl-C cannot end it.
        if not code and not self.yes and not typer.confirm("revert this request?", err=True):
            raise CommandFailed("not confirmed: nothing was reverted")
        code = code or run_async(partial(self._revert, nats, prefix))
        if code:
            return code
        if self.conflicts is not None:
            show_conflicts(self.conflicts, self.json)
            raise CommandFailed(
                f"nothing was reverted: {self.conflicts.message}; revert the newer edits first, or edit the values"
            )
        assert self.response is not None  # noqa: S101 - `_revert` sets it or raises
        show_success(self.response, self.json)
        assert self.step is not None  # noqa: S101 - `_find` sets it, or raises
        if self.verb == "undo" and not self.json:
            show_way_on(self.key, self.step.entry.commit.source)
        return 0

    async def _find(self, nats: str, prefix: str) -> None:
        """Find the request to revert. Show it if the user must confirm it, or if stdout is a terminal."""
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            await self._refuse_closed(client)
            find = client.undoable if self.verb == "undo" else client.redoable
            self.step = await find(self.key.workspace, self.key.change_set, author=self.author)
            if self.step is None:
                raise CommandFailed(self._nothing())
            if not self.yes or console.is_terminal():
                await self._show(client, self.step)

    async def _refuse_closed(self, client: "RebaserClient") -> None:
        """Raise `CommandFailed` if the change set is closed. Otherwise, the server would refuse the request only after
        the user has confirmed it."""
        info = await client.branch(self.key.workspace, self.key.change_set)
        if info is not None and info.status not in ("open", "deleted"):
            name = f"{self.key.workspace}/{self.key.change_set}"
            reopen = f"`{command('reopen', self.key.workspace, self.key.change_set)}` opens it again"
            raise CommandFailed(f"nothing was reverted: {name} is closed; {reopen}")

    async def _revert(self, nats: str, prefix: str) -> None:
        from rebaser.cli.commands.history.revert import refused
        from rebaser.cli.connect import connect_client
        from rebaser_client import RequestConflicts, RequestRejected

        assert self.step is not None  # noqa: S101 - `_find` sets it, or raises
        place, request = self.step.entry.sequence, self.step.decision.request_id
        async with connect_client(nats, prefix) as client:
            try:
                self.response = await client.revert(
                    *(self.key.workspace, self.key.change_set, place),
                    request=request,
                    author=self.author,
                    message=self.message,
                    timeout=self.timeout,
                )
            except RequestConflicts as error:
                self.conflicts = error
            except RequestRejected as error:
                raise refused(error, self.key, str(place), None, request=request) from None

    def _nothing(self) -> str:
        whose = f"by {self.author}" if self.author else "without an author (see --author)"
        what = "request" if self.verb == "undo" else "undo"
        place = f"{self.key.workspace}/{self.key.change_set}"
        return f"nothing to {self.verb} in {place}: there is no {what} {whose} to revert"

    async def _show(self, client: "RebaserClient", step: "UndoStep") -> None:
        """Show the request of `step`, and the changes that would undo it if no value has been edited again since."""
        from rebaser.cli.output.change_format import time_text

        shown = await client.show(self.key.workspace, self.key.change_set, step.entry.sequence)
        changes = [
            change
            for one in shown.requests
            if one.decision.request_id == step.decision.request_id
            for change in one.changes
        ]
        by = f" by {step.author.author}" if step.author.author else ""
        why = f": {step.author.message.splitlines()[0]}" if step.author.message else ""
        title = (
            f"request {step.decision.request_id}{by}, commit {step.entry.sequence}, {time_text(step.entry.time)}{why}"
        )
        self._show_changes(title, changes)

    def _show_changes(self, title: str, changes: "list[Change]") -> None:
        from rebaser.cli.output.change_format import definition_text

        rows = [
            (change.id, definition_text(change.after), definition_text(change.before, change.known))
            for change in changes[:SHOWN]
        ]
        more = f"and {len(changes) - SHOWN:,} more" if len(changes) > SHOWN else ""
        if console.is_terminal() and not self.json:
            console.table(("id", "now", f"after the {self.verb}"), rows, title=title, styles=STYLES)
        else:
            console.note(title)
            for id_, now, then in rows:
                console.note(f"  {id_}: {now} becomes {then}")
        if more:
            console.note(more)
