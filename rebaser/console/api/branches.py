"""`/branches`: a page of the table of branches. `/change-sets/…/changes` and `/conflicts`: what a branch changed, and
where it disagrees with its target."""

from collections.abc import Callable
from functools import partial
from typing import Any

from rebaser.console.api.values import MAX_ID, base_path
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import branch_object, definition_text, fault_object, short_text
from rebaser_client.log.branches import BranchDiff, BranchInfo
from rebaser_client.log.changes import MovedValue
from rebaser_core.ids import ChangeSetKey
from rebaser_core.values import Value

SAMPLE, ROW_BYTES = 200, 600
DERIVED = 100  # derived values that differ, of a page

FILTERS: dict[str, Callable[[BranchInfo], bool]] = {
    "open": lambda info: info.status == "open",
    "conflicts": lambda info: info.status == "open" and info.conflicts > 0,
    "behind": lambda info: info.status == "open" and info.behind,
    "ready": lambda info: info.status == "open" and info.changes > 0 and not info.conflicts and not info.behind,
    "closed": lambda info: info.status not in ("open", "deleted"),
    "all": lambda info: info.status != "deleted",
}
SORTS: dict[str, Callable[[BranchInfo], Any]] = {
    "recent": lambda info: (-info.sequence,),
    "name": lambda info: (info.workspace, info.change_set),
    "changes": lambda info: (-info.changes, info.workspace, info.change_set),
    "conflicts": lambda info: (-info.conflicts, info.workspace, info.change_set),
}


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the branches that match: change sets with a target."""
    words, state = given.text("q").lower().split(), given.choice("state", tuple(FILTERS))
    sort, (offset, limit) = given.choice("sort", tuple(SORTS)), given.page()
    seen = await console.hub.seen()
    found = [info for info in seen.change_sets if info.target is not None and _matches(info, words)]
    counts = {name: sum(map(keep, found)) for name, keep in FILTERS.items()}
    rows = sorted(filter(FILTERS[state], found), key=SORTS[sort])
    return {
        "problem": seen.problem,
        "at": seen.view.at,
        "matching": len(rows),
        "counts": counts,
        "offset": offset,
        "limit": limit,
        "rows": [branch_object(info) for info in rows[offset : offset + limit]],
    }


def _matches(info: BranchInfo, words: list[str]) -> bool:
    name = f"{info.workspace}/{info.change_set} {info.target}".lower()
    return all(word in name for word in words)


async def read_changes(console: Console, given: Given) -> Answer:
    """Return a page of what the branch changed since its base; if asked, also the derived values that differ."""
    key, derived, (offset, limit) = given.key, given.flag("derived"), given.page()
    start = given.number("derivedOffset", 0, most=10**9)
    found = await _diff(console, key, derived=derived)
    page = found.changes[offset : offset + limit]
    return {
        "branch": branch_object(found.info),
        "position": found.info.sequence,
        "targetPosition": found.target_sequence,
        "matching": len(found.changes),
        "offset": offset,
        "limit": limit,
        "rows": [
            {
                "id": change.id,
                "base": definition_text(change.base),
                "ours": definition_text(change.ours),
                "theirs": definition_text(change.theirs),
                "moved": change.moved,
                "landed": change.landed,
            }
            for change in page
        ],
        "derived": [_moved(one) for one in found.derived[start : start + DERIVED]] if derived else None,
        "derivedCount": len(found.derived) if derived else None,
        "derivedOffset": start,
        "derivedLimit": DERIVED,
    }


async def _diff(console: Console, key: ChangeSetKey, *, derived: bool) -> BranchDiff:
    """Return what the branch changed. All who look at it, and all pages of it, share one answer, until the branch or
    its target has a new commit."""
    client = await console.client()
    compute = partial(client.changes, key.workspace, key.change_set, derived=derived)
    info = await client.branch(key.workspace, key.change_set)
    if info is None or info.target is None:
        return await compute()
    target = await client.branch(key.workspace, info.target)
    positions = info.sequence, 0 if target is None else target.sequence
    return await console.kept.get(("diff", key, positions, derived), compute, diff_bytes)


def diff_bytes(diff: BranchDiff) -> int:
    """Return about how much memory a difference takes, by a sample of its values."""
    rows = len(diff.changes) + len(diff.derived)
    step = max(1, len(diff.derived) // SAMPLE)
    texts = [len(str(value.value)) for _, *both in diff.derived[::step] for value in both]
    step = max(1, len(diff.changes) // SAMPLE)
    texts += [len(str(change)) for change in diff.changes[::step]]
    return rows * (ROW_BYTES + 2 * sum(texts) // max(1, len(texts)))


def _moved(moved: MovedValue) -> Answer:
    id_, before, after = moved
    return {"id": id_, "before": _value(before), "after": _value(after)}


def _value(value: Value) -> Answer:
    return {"state": value.state.value, "text": short_text(value), "error": fault_object(value.error)}


async def read_conflicts(console: Console, given: Given) -> Answer:
    """Return a page of the conflicts of the branch, by id."""
    key, after = given.key, given.text("after", most=MAX_ID)
    limit = given.number("limit", 50, least=1, most=200)
    client = await console.client()
    found = await client.conflicts(key.workspace, key.change_set, after=after, limit=limit)
    rows = [
        {
            "id": one.id,
            "base": definition_text(one.base),
            "ours": definition_text(one.ours),
            "theirs": definition_text(one.theirs),
        }
        for one in found.conflicts
    ]
    return {
        "branch": branch_object(found.info),
        "position": found.info.sequence,
        "matching": found.info.conflicts,
        "rows": rows,
        "next": rows[-1]["id"] if len(rows) == limit else None,
    }


RESOURCES = (
    Resource("/branches", read, live=True, query=("q", "state", "sort", "offset", "limit")),
    Resource(base_path("/changes"), read_changes),
    Resource(base_path("/conflicts"), read_conflicts),
)
