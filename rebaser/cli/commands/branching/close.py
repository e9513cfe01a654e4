"""`rebaser close` and `rebaser reopen`: make a change set refuse all edits, or accept them again."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli.errors import refusal
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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from rebaser_client import EnqueueUpdatesResponse, RebaserClient
    from rebaser_core.ids import ChangeSetKey

    Mark = Callable[[RebaserClient], Awaitable[Any]]  # returns the answer, or the status that stays as it is

_ADVICE = {"purged": "its history is no longer kept"}


def close(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    applied: Annotated[
        bool,
        typer.Option(
            "--applied", help="Mark it as applied, not as abandoned, because its target contains its changes."
        ),
    ] = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Make a change set refuse all edits, until it is reopened.

    The change set also refuses reverts, recomputes and applied branches, and cannot itself be applied. Its values can
    still be read, and change sets can be created from it.

    A change set that is closed already stays as it is: an applied branch remains marked as applied. Only --applied
    changes the mark of a closed change set.
    """
    key = checked_key(workspace, change_set)
    status: Literal["abandoned", "applied"] = "applied" if applied else "abandoned"

    async def mark(client: "RebaserClient") -> "EnqueueUpdatesResponse | str":
        from rebaser_client import NotAllowed

        info = None
        if not applied:
            with suppress(NotAllowed):  # a user without the right to read closes whatever there is
                info = await client.branch(key.workspace, key.change_set)
        if info is not None and info.status not in ("open", "deleted"):
            return info.status
        return await client.close_change_set(
            key.workspace, key.change_set, status, author=author, message=message, timeout=timeout
        )

    return send_mark(mark, key, f"closed ({status})", {"status": status}, (nats, prefix), json=json)


def reopen(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Make a closed change set accept edits again, or restore a deleted one."""
    key = checked_key(workspace, change_set)

    async def mark(client: "RebaserClient") -> "EnqueueUpdatesResponse":
        return await client.reopen_change_set(
            key.workspace, key.change_set, author=author, message=message, timeout=timeout
        )

    return send_mark(mark, key, "open", {"status": "open"}, (nats, prefix), json=json)


def send_mark(
    mark: "Mark",
    key: "ChangeSetKey",
    shown: str,
    state: "Mapping[str, str | bool]",
    place: tuple[str, str],
    *,
    json: bool,
) -> int:
    """Call `mark` with a client connected to `place` (NATS URL and prefix). Then print the new state of the change set
    `key`, as the text `shown` or as the JSON object `state`. Return the exit code.

    If `mark` sends no request, because the change set is closed already, it returns the status.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async
    from rebaser_client import RequestRejected
    from rebaser_core.response import Success

    done: list[EnqueueUpdatesResponse | str] = []

    async def run() -> None:
        async with connect_client(*place) as client:
            try:
                done.append(await mark(client))
            except RequestRejected as error:
                raise refusal("nothing was changed", error, key, _ADVICE) from None

    code = run_async(run)
    if code:
        return code
    response = done[0]
    if isinstance(response, str):
        if json:
            console.write_json({"requestId": None, "commit": None, "status": response})
        else:
            why = f" ({response})" if response != "kept" else ""
            console.write_line(f"{key.change_set}: closed already{why}, nothing was changed")
        return 0
    answer = response.status
    assert isinstance(answer, Success)  # noqa: S101 - the client raises any other status
    if json:
        console.write_json({"requestId": response.id, "commit": answer.commit, **state})
    else:
        console.write_line(f"{key.change_set}: {shown} (commit {answer.commit})")
    return 0
