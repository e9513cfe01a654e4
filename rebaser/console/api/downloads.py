"""`/change-sets.csv`: the table of change sets. `/change-sets/…/values.jsonl`: the definitions of values."""

from rebaser.console.access.hiding import need_values
from rebaser.console.api.change_sets import ListedChangeSet, matching, row_object
from rebaser.console.api.values import MAX_ID, Group, base_path, matching_ids
from rebaser.console.downloads import definitions, table
from rebaser.console.resources import Console, Document, Download, Given

HEAD = (
    "workspace",
    "change set",
    "state",
    "status",
    "requests in the queue",
    "waiting (s)",
    "branch of",
    "base",
    "changes",
    "conflicts",
    "behind",
    "protected",
    "values in error",
    "last server",
    "last commit",
    "last commit at",
    "update due",
    "values updated",
    "values to update",
    "problem",
)


async def read_change_sets(console: Console, given: Given) -> Document:
    """Return all change sets that match, not only those of a page."""
    rows, _ = matching(await console.hub.seen(), given)
    return Document("change-sets.csv", "text/csv; charset=utf-8; header=present", table(HEAD, rows, _cells))


def _cells(one: ListedChangeSet) -> tuple[object, ...]:
    row = row_object(one)
    update = row["update"] or {}
    names = ("workspaceId", "changeSetId", "state", "status", "pending", "waiting", "target", "base", "changes")
    more = ("conflicts", "behind", "protected", "errors", "owner", "lastCommit", "lastCommitTime", "debt")
    found = [row.get(name) for name in (*names, *more)]
    return (*found, update.get("done"), update.get("total"), row["problem"])


async def read_values(console: Console, given: Given) -> Document:
    """Return the definitions of the values that match."""
    need_values()
    key, words = given.key, given.text("q", most=MAX_ID)
    group, prefix = Group.of(given), given.text("prefix", most=MAX_ID)
    loaded = await console.states.get(await console.client(), key)
    ids = await matching_ids(console, loaded, words=words, group=group, prefix=prefix)
    name = f"{key.workspace}-{key.change_set}-{loaded.state.last}.jsonl"
    return Document(name, "application/jsonl", definitions(loaded, ids))


RESOURCES = ()
DOWNLOADS = (Download("/change-sets.csv", read_change_sets), Download(base_path("/values.jsonl"), read_values))
