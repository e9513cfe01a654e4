"""Completes names in a shell: an installation's workspaces, change sets, branches and their targets, and ids of values.

Invariant: a completion never fails and never takes long. If the installation does not answer, nothing is offered.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rebaser_client import RebaserClient

SECONDS = 2.0  # if there is no answer within this time, nothing is offered
OFFERED = 100  # maximum number of names that are offered
MAX_LOADED = 16 * 1024 * 1024  # bytes of the checkpoint from which no ids are offered, because loading takes too long


def complete_workspace(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the workspaces."""

    async def names(client: "RebaserClient") -> list[str]:
        return [key.workspace for key in await client.change_sets()]

    return _offered(context, names, incomplete)


def complete_change_set(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the change sets of the workspace."""
    workspace = _given(context, "workspace") or _given(context, "ws")  # `status` also has an option of this name

    async def names(client: "RebaserClient") -> list[str]:
        return [key.change_set for key in await client.change_sets(workspace)]

    return _offered(context, names, incomplete) if workspace else []


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the open branches of the workspace."""
    workspace = _given(context, "workspace")

    async def names(client: "RebaserClient") -> list[str]:
        return [one.change_set for one in await client.branches(workspace) if one.target and one.status == "open"]

    return _offered(context, names, incomplete) if workspace else []


def complete_id(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the change set's values, except those that have already been typed. Of a large change set, none
    is offered."""
    workspace, position = _given(context, "workspace"), _given(context, "change_set")
    given = context.params.get("ids") or ()

    async def names(client: "RebaserClient") -> list[str]:
        from rebaser_client.log.positions import parse_position

        parsed = parse_position(position, datetime.now(UTC))
        if (await client.history_status(workspace, parsed.change_set)).checkpoint_bytes > MAX_LOADED:
            return []
        state = await client.state(workspace, parsed.change_set, at=parsed.at)
        return [id_ for id_ in state.cells if id_ not in given]

    return _offered(context, names, incomplete) if workspace and position else []


def complete_conflict(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the values of the branch that are in conflict, except those that have already been typed."""
    workspace, branch = _given(context, "workspace"), _given(context, "branch")
    given = context.params.get("ids") or ()

    async def names(client: "RebaserClient") -> list[str]:
        return [one.id for one in (await client.conflicts(workspace, branch)).conflicts if one.id not in given]

    return _offered(context, names, incomplete) if workspace and branch else []


def complete_side(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the branch and its target."""
    workspace, branch = _given(context, "workspace"), _given(context, "branch")

    async def names(client: "RebaserClient") -> list[str]:
        return [branch, *await _targets(client, workspace, branch)]

    return _offered(context, names, incomplete) if workspace and branch else []


def complete_target(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the target of the branch."""
    workspace, branch = _given(context, "workspace"), _given(context, "branch") or _given(context, "change_set")

    async def names(client: "RebaserClient") -> list[str]:
        return await _targets(client, workspace, branch)

    return _offered(context, names, incomplete) if workspace and branch else []


def complete_new_target(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the only target that a rebase can give the branch: the target of its target."""
    workspace, branch = _given(context, "workspace"), _given(context, "branch")

    async def names(client: "RebaserClient") -> list[str]:
        return [
            name
            for target in await _targets(client, workspace, branch)
            for name in await _targets(client, workspace, target)
        ]

    return _offered(context, names, incomplete) if workspace and branch else []


def complete_target_of_new(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the targets that a new branch can have: its parent and the target of its parent."""
    workspace, parent = _given(context, "workspace"), (_given(context, "from_") or "main").partition("@")[0]

    async def names(client: "RebaserClient") -> list[str]:
        return [parent, *await _targets(client, workspace, parent)]

    return _offered(context, names, incomplete) if workspace else []


async def _targets(client: "RebaserClient", workspace: str, branch: str) -> list[str]:
    info = await client.branch(workspace, branch)
    return [] if info is None or info.target is None else [info.target]


def _offered(
    context: typer.Context, names: "Callable[[RebaserClient], Awaitable[Sequence[str]]]", incomplete: str
) -> list[str]:
    """Return the sorted names that begin with the text typed so far. Each name occurs once."""
    import anyio

    found: list[str] = []

    async def ask() -> None:
        connected = _client(context)  # this also imports the client, before the time limit begins
        with anyio.move_on_after(SECONDS):
            async with connected as client:
                found.extend(await names(client))

    with suppress(Exception):  # a shell cannot show errors here
        anyio.run(ask)
    return sorted({name for name in found if name.startswith(incomplete)})[:OFFERED]


def _client(context: typer.Context) -> "AbstractAsyncContextManager[RebaserClient]":
    """Return a client of the installation that the options and the environment describe.

    `rebaser.cli.connect` cannot do this, because it imports the options, which import this module.
    """
    from rebaser.client_settings import load_client_settings
    from rebaser_client import RebaserClient

    options = {name: value for name, value in context.params.items() if name.startswith("nats_")}
    url = _given(context, "nats")
    options |= {"nats_url": url} if url else {}
    settings = load_client_settings(prefix=_given(context, "prefix"), **options)
    return RebaserClient.connect(
        settings.nats_url,
        prefix=settings.prefix,
        blobs=settings.blobs,
        inbox_prefix=settings.inbox_prefix,
        **settings.access(),
    )


def _given(context: typer.Context, name: str) -> str:
    """Return the value of a parameter that precedes the word to be completed, or an empty text if it is not given."""
    value = context.params.get(name)
    if value is None and context.args:  # if an option lacks its value, the parser leaves all arguments unparsed
        names = [param.name for param in context.command.params if param.param_type_name == "argument"]
        value = dict(zip(names, context.args, strict=False)).get(name)
    return str(value or "")
