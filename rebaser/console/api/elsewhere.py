"""`/change-sets/…/elsewhere`: which other change sets have another definition of a value.

The console looks at the target of the change set, at its open branches, and at the other open branches of its target.
Of a branch, only its own edits are read: if it did not edit the value, it has the definition that its target had at its
base.
"""

import time
from collections.abc import Mapping

from rebaser.console.access.hiding import told
from rebaser.console.api.values import MAX_ID, base_path
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import cut, definition_text, time_text
from rebaser_client import RebaserClient
from rebaser_client.log.branches import BranchInfo
from rebaser_client.log.changes import Definition
from rebaser_core.branches.merge import same_definition
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

LOOKED = 25  # change sets of a page
SECONDS = 2.0  # after which a page ends early
SAMPLE, ROW_BYTES = 200, 400  # definitions that are measured; bytes of each one beside its text


async def read(console: Console, given: Given) -> Answer:
    """Look at a page of the related change sets; return those that have another definition of the value `id`."""
    key, id_, offset = given.key, given.text("id", most=MAX_ID), given.number("offset", 0, most=10**9)
    seen, client = await console.hub.seen(), await console.client()
    loaded = await console.states.get(client, key)
    cells = loaded.state.cells
    here: Definition | None = cells.edit_of(id_)  # type: ignore[assignment] # never `Remove`
    found = related([info for info in seen.change_sets if info.workspace == key.workspace], key.change_set)
    rows, end, looked = list[Answer](), time.monotonic() + SECONDS, 0
    for relation, info in found[offset : offset + LOOKED]:
        if looked and time.monotonic() > end:
            break
        looked += 1
        row = {
            "changeSetId": info.change_set,
            "relation": relation,
            "lastCommit": info.sequence,
            "lastCommitTime": time_text(info.time),
        }
        try:
            edited, there = await _definition(console, client, relation, info, id_)
        except RebaserError as error:
            rows.append(row | {"how": "unknown", "text": None, "problem": cut(told(error.message))})
            continue
        if edited and not same_definition(here, there):
            rows.append(row | {"how": "removed" if there is None else "other", "text": definition_text(there)})
        elif not edited and relation == "branch" and cells.edited(id_) > info.base:
            rows.append(row | {"how": "older", "text": None})
    return {
        "at": seen.view.at,
        "position": loaded.state.last,
        "rows": rows,
        "offset": offset,
        "looked": looked,
        "matching": len(found),
        "next": offset + looked if offset + looked < len(found) else None,
    }


def related(infos: list[BranchInfo], name: str) -> list[tuple[str, BranchInfo]]:
    """Return the target of the change set `name`, its open branches, and the other open branches of its target, each
    with its relation. Of the branches, those with the newest commits come first."""
    target = next((info.target for info in infos if info.change_set == name), None)
    found = [("target", info) for info in infos if target is not None and info.change_set == target]
    branches = [info for info in infos if info.status == "open" and info.change_set not in (name, target)]
    for relation, of in (("branch", name), ("sibling", target)):
        some = [info for info in branches if of is not None and info.target == of]
        found += [(relation, info) for info in sorted(some, key=lambda info: -info.sequence)]
    return found


async def _definition(
    console: Console, client: RebaserClient, relation: str, info: BranchInfo, id_: str
) -> tuple[bool, Definition | None]:
    """Return the definition that a change set has of a value. For a branch that did not edit it, the first item is
    false."""
    position = ChangeSetKey(info.workspace, info.change_set), info.sequence

    async def defined() -> dict[str, Definition | None]:
        return {id_: (await client.definitions(info.workspace, info.change_set, id_)).get(id_)}

    async def edited() -> dict[str, Definition | None]:
        return await client.branch_edits(info.workspace, info.change_set)

    if relation == "target":
        found = await console.kept.get(("defined", *position, id_), defined, edit_bytes)
    elif info.changes:
        found = await console.kept.get(("edits", *position), edited, edit_bytes)
    else:
        found = {}
    return id_ in found, found.get(id_)


def edit_bytes(edits: Mapping[str, Definition | None]) -> int:
    """Return about how much memory definitions take, by a sample of them."""
    sample = list(edits.items())[:: max(1, len(edits) // SAMPLE)]
    size = sum(len(id_) + 2 * len(str(definition)) for id_, definition in sample)
    return 200 + len(edits) * (ROW_BYTES + size // max(1, len(sample)))


RESOURCES = (Resource(base_path("/elsewhere"), read),)
