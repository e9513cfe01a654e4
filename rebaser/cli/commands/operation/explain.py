"""`rebaser explain`: tells why a change set waits, or why a value is what it is."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rebaser.cli.options import DEFAULT_NATS, ChangeSet, Json, Nats, Prefix, Workspace, checked_key
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client.admin.explanations import Explanation


def explain(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Tell why a change set waits, and what to do.

    The most likely reason comes first. If nothing waits, it says so, and names what is worth knowing all the same: dead
    letters, conflicts, a slow disk. No values are loaded, and nothing is changed.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    key = checked_key(workspace, change_set)
    found: list[Explanation] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            found.append(await client.explain(key.workspace, key.change_set))

    code = run_async(load)
    if code:
        return code
    (explanation,) = found
    if json:
        console.write_json(_object(explanation))
        return 0
    rows = [(reason.code, reason.text, reason.advice) for reason in explanation.reasons]
    console.table(("reason", "what is so", "what to do"), rows, styles={0: "cyan"})
    return 0


def _object(explanation: "Explanation") -> dict[str, Any]:
    facts = explanation.facts
    return {
        "workspaceId": facts.workspace,
        "changeSetId": facts.change_set,
        "waits": explanation.waits,
        "reasons": [asdict(reason) for reason in explanation.reasons],
        "facts": {
            name: value for name, value in _plain(asdict(facts)).items() if name not in ("workspace", "changeSet")
        },
    }


def _plain(value: Any) -> Any:
    """Return facts as JSON, with camelCase names. The functions of servers are left out: they are many."""
    if isinstance(value, dict):
        return {_camel(name): _plain(one) for name, one in value.items() if name != "functions"}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
