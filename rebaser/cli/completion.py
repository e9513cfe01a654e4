"""Completes names in a shell: workspaces, change sets, branches, and values in conflict, as the installation has them.

Invariant: a completion never fails and never takes long. Without an installation that answers, it offers nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rebaser_client import RebaserClient

SECONDS = 2.0  # without an answer, after which a completion offers nothing
OFFERED = 100  # names


def complete_workspace(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the workspaces."""

    async def names(client: "RebaserClient") -> list[str]:
        return [key.workspace for key in await client.change_sets()]

    return _offered(context, names, incomplete)


def complete_change_set(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the change sets of the workspace."""
    workspace = _given(context, "workspace")

    async def names(client: "RebaserClient") -> list[str]:
        return [key.change_set for key in await client.change_sets(workspace)]

    return _offered(context, names, incomplete) if workspace else []


def complete_branch(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the open branches of the workspace."""
    workspace = _given(context, "workspace")

    async def names(client: "RebaserClient") -> list[str]:
        return [one.change_set for one in await client.branches(workspace) if one.target and one.status == "open"]

    return _offered(context, names, incomplete) if workspace else []


def complete_conflict(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the values in conflict of the branch, but for those that are given already."""
    workspace, branch = _given(context, "workspace"), _given(context, "branch")
    given = context.params.get("ids") or ()

    async def names(client: "RebaserClient") -> list[str]:
        return [one.id for one in (await client.conflicts(workspace, branch)).conflicts if one.id not in given]

    return _offered(context, names, incomplete) if workspace and branch else []


def complete_side(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the branch and its target."""
    workspace, branch = _given(context, "workspace"), _given(context, "branch")

    async def names(client: "RebaserClient") -> list[str]:
        info = await client.branch(workspace, branch)
        return [branch] if info is None or info.target is None else [branch, info.target]

    return _offered(context, names, incomplete) if workspace and branch else []


def _offered(
    context: typer.Context, names: "Callable[[RebaserClient], Awaitable[Sequence[str]]]", incomplete: str
) -> list[str]:
    """Return the names that begin with what is typed, sorted, each once."""
    import anyio

    found: list[str] = []

    async def ask() -> None:
        connected = _client(context)  # which imports the client, before the time begins
        with anyio.move_on_after(SECONDS):
            async with connected as client:
                found.extend(await names(client))

    with suppress(Exception):  # a shell has no place for errors
        anyio.run(ask)
    return sorted({name for name in found if name.startswith(incomplete)})[:OFFERED]


def _client(context: typer.Context) -> "AbstractAsyncContextManager[RebaserClient]":
    """Return a client of the installation that the options and the environment describe.

    `rebaser.cli.connect` cannot do this, because it imports the options, which import this module.
    """
    from rebaser.settings import load_settings
    from rebaser_client import RebaserClient

    options = {name: value for name, value in context.params.items() if name.startswith("nats_")}
    url = _given(context, "nats")
    options |= {"nats_url": url} if url else {}
    settings = load_settings(prefix=_given(context, "prefix"), **options)
    return RebaserClient.connect(
        settings.nats_url,
        prefix=settings.prefix,
        blobs=settings.blobs,
        inbox_prefix=settings.inbox_prefix,
        **settings.access(),
    )


def _given(context: typer.Context, name: str) -> str:
    """Return the value of a parameter that stands before what is completed; empty if there is none."""
    value = context.params.get(name)
    if value is None and context.args:  # at an option without its value, the parser gave up and left all arguments
        names = [param.name for param in context.command.params if param.param_type_name == "argument"]
        value = dict(zip(names, context.args, strict=False)).get(name)
    return str(value or "")
