"""`rebaser list`: lists workspaces, or the change sets of one workspace."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated

from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix, optional_workspace
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token

if TYPE_CHECKING:
    from rebaser_core.ids import ChangeSetKey


def list_(
    workspace: Annotated[str | None, optional_workspace("List the change sets of this workspace.")] = None,
    *,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """List workspaces, or the change sets of one workspace.

    A change set exists from its first request until it is deleted. On a terminal, the command prints a table;
    otherwise, it prints one name per line.
    """
    from rebaser.cli.runner import run_async

    if workspace is not None:
        try:
            check_token(workspace, "workspace")
        except UnprocessableError as error:
            raise usage_error(error.message) from None
    keys: list[ChangeSetKey] = []
    code = run_async(partial(_load, nats, prefix, workspace, keys))
    if code:
        return code
    if workspace is not None:
        if not keys:
            raise CommandFailed(f"there is no workspace {workspace}; `rebaser list` shows all workspaces")
        _show(("change set",), [(key.change_set,) for key in keys], [_object(key) for key in keys], json)
        return 0
    counts = Counter(key.workspace for key in keys)
    objects = [{"workspaceId": name, "changeSets": count} for name, count in counts.items()]
    _show(("workspace", "change sets"), [(name, str(count)) for name, count in counts.items()], objects, json)
    if not keys:
        console.note("there are no workspaces yet")
    return 0


async def _load(nats: str, prefix: str, workspace: str | None, keys: list["ChangeSetKey"]) -> None:
    from rebaser.cli.connect import connect_client

    async with connect_client(nats, prefix) as client:
        found = await client.change_sets(workspace)
        infos = await client.branches(workspace) if found else []
    deleted = {(info.workspace, info.change_set) for info in infos if info.status == "deleted"}
    keys += [key for key in found if (key.workspace, key.change_set) not in deleted]


def _object(key: "ChangeSetKey") -> dict[str, object]:
    return {"workspaceId": key.workspace, "changeSetId": key.change_set}


def _show(titles: tuple[str, ...], rows: list[tuple[str, ...]], objects: list[dict[str, object]], json: bool) -> None:
    if not json:
        console.table(titles, rows, right=(1,))
        return
    for item in objects:
        console.write_json(item)
