"""`rebaser resolve`: settles conflicts of a branch with its target.

Invariant: the command settles only conflicts that it has read. If one of the values was then edited or came into
conflict again, the request is refused.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.completion import complete_conflict, complete_side
from rebaser.cli.errors import CommandFailed, refusal, usage_error
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
)
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import BranchConflicts, EnqueueUpdatesResponse
    from rebaser_core.ids import ChangeSetKey
    from rebaser_core.updates import Update


def resolve(
    workspace: Workspace,
    branch: Branch,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids of the values in conflict.", autocompletion=complete_conflict),
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Settle all conflicts of the branch.")] = False,
    take: Annotated[
        str | None,
        typer.Option(
            metavar="CS",
            help="Take the definition of this side: the name of the branch, or of its target.",
            autocompletion=complete_side,
        ),
    ] = None,
    set_: Annotated[str | None, typer.Option("--set", metavar="VALUE", help="Set each ID to this JSON value.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove each ID.")] = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Settle conflicts of a branch with its target: take the definition of one side, or a new one.

    `rebaser conflicts` shows the conflicts. Settling a conflict edits only the branch; the target does not change until
    the branch is applied. Either all of the given conflicts are settled, or none. If one of the values was edited in
    the meantime, none is settled, and the exit code is 1.
    """
    key = checked_key(workspace, branch)
    if bool(ids) == all_:
        raise usage_error("either specify the ids of values in conflict, or use --all")
    if sum((take is not None, set_ is not None, remove)) != 1:
        raise usage_error("use exactly one of --take SIDE, --set VALUE and --remove")
    return _Resolve(key, ids, take, set_, author, message, timeout, json).run(nats, prefix)


@dataclass(slots=True)
class _Resolve:
    key: "ChangeSetKey"
    ids: list[str] | None
    take: str | None
    value: str | None
    author: str
    message: str
    timeout: float
    json: bool
    found: "BranchConflicts | None" = None
    response: "EnqueueUpdatesResponse | None" = None
    left: int = 0

    def run(self, nats: str, prefix: str) -> int:
        from rebaser.cli.runner import run_async

        code = run_async(partial(self._resolve, nats, prefix))
        if code:
            return code
        self._show()
        return 0

    async def _resolve(self, nats: str, prefix: str) -> None:
        from rebaser.cli.connect import connect_client
        from rebaser_client import RequestRejected

        workspace, name = self.key.workspace, self.key.change_set
        async with connect_client(nats, prefix) as client:
            try:
                self.found = await client.conflicts(workspace, name)
                if not self.found.conflicts:
                    raise CommandFailed(f"{name} has no conflicts with {self.found.info.target}")
                self._check_side()
                self.response = await client.resolve(
                    *(workspace, name, self.ids or [one.id for one in self.found.conflicts]),
                    take=self.take,
                    updates=self._updates(),
                    at=self.found.info.sequence,
                    author=self.author,
                    message=self.message,
                    timeout=self.timeout,
                )
                info = await client.branch(workspace, name)
                self.left = 0 if info is None else info.conflicts
            except RequestRejected as error:
                advice = {
                    "moved": f"`{command('conflicts', self.key.workspace, self.key.change_set)}` shows the conflicts"
                }
                raise refusal("nothing was settled", error, self.key, advice) from None
            except UnprocessableError as error:
                more = f"; `{command('conflicts', workspace, name)}` shows the conflicts"
                text = f"nothing was settled: {error.message}"
                raise CommandFailed(text + (more if error.code == "no_conflict" else "")) from None

    def _check_side(self) -> None:
        assert self.found is not None  # noqa: S101 - `_resolve` has set it
        sides = (self.found.info.target, self.key.change_set)
        if self.take is not None and self.take not in sides:
            raise usage_error(f"must be {sides[0]} or {sides[1]}, not {self.take[:80]!r}", "--take")

    def _updates(self) -> "list[Update]":
        from rebaser.cli.sending.edits import parse_value
        from rebaser_core.updates import Remove, Set

        assert self.found is not None  # noqa: S101 - `_resolve` has set it
        if self.take is not None:
            return []
        ids = self.ids or [one.id for one in self.found.conflicts]
        if self.value is None:
            return [Remove(id_) for id_ in ids]
        value = parse_value(self.value, "--set ")
        return [Set(id_, value) for id_ in ids]

    def _show(self) -> None:
        from rebaser_core.response import Success

        assert self.response is not None  # noqa: S101 - `_resolve` sets it or raises
        status = self.response.status
        assert isinstance(status, Success)  # noqa: S101 - the client raises any other status
        workspace, name = self.key.workspace, self.key.change_set
        if self.json:
            console.write_json(
                {
                    "requestId": self.response.id,
                    "changeSetId": name,
                    "commit": status.commit,
                    "updates": status.performed,
                    "conflicts": self.left,
                }
            )
            return
        settled = f"{status.performed:,} conflict{'' if status.performed == 1 else 's'}"
        console.write_line(f"{name}: {settled} settled, {self.left:,} left (commit {status.commit})")
        verb = "conflicts" if self.left else "apply"
        console.note(f"next: {command(verb, workspace, name)}")
