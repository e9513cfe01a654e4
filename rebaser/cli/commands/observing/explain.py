"""`rebaser explain`: explains why a change set waits, or why a value is stale or in error."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.completion import complete_id
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, ChangeSet, Json, Nats, Prefix, Workspace, checked_key
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client.admin.explanations import ExplainedValue, Explanation
    from rebaser_client.log.blame import Blame
    from rebaser_core.explain.values import ValueInput
    from rebaser_core.ids import ChangeSetKey
    from rebaser_core.values import Value

MAX_CELL = 200  # maximum number of characters of a value in a table


def explain(
    workspace: Workspace,
    change_set: ChangeSet,
    id_: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Explain this value instead of the change set.",
            show_default=False,
            autocompletion=complete_id,
        ),
    ] = None,
    *,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Explain why a change set waits, or why a value is stale or in error, and what to do.

    The most likely reason comes first. If nothing waits, the command says so. It also reports problems for which
    nothing has to wait, such as dead letters, conflicts or a slow disk. It loads no values and changes nothing.

    With an ID, the command loads the change set. It shows the definition of the value and its author, the inputs with
    their values, and the values that depend on it. If the value is stale or in error, it also shows the path to the
    value that caused this. The exit code is 1 if there is no such value.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    key = checked_key(workspace, change_set)
    found: list[Explanation] = []
    values: list[ExplainedValue | None] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            if id_ is None:
                found.append(await client.explain(key.workspace, key.change_set))
            else:
                values.append(await client.explain_value(key.workspace, key.change_set, id_))

    code = run_async(load)
    if code:
        return code
    if id_ is not None:
        return _show_value(key, id_, values[0], json)
    (explanation,) = found
    if json:
        console.write_json(_object(explanation))
        return 0
    rows = [(reason.code, reason.text, reason.advice) for reason in explanation.reasons]
    console.table(("reason", "situation", "what to do"), rows, styles={0: "cyan"})
    return 0


def _object(explanation: "Explanation") -> dict[str, Any]:
    facts = _plain(asdict(explanation.facts))
    return {
        "workspaceId": facts.pop("workspace"),
        "changeSetId": facts.pop("changeSet"),
        "waits": explanation.waits,
        "reasons": [asdict(reason) for reason in explanation.reasons],
        "facts": facts,
    }


def _plain(value: Any) -> Any:
    """Return facts as JSON, with camelCase names. The functions of servers are omitted, because there are many of
    them."""
    if isinstance(value, dict):
        return {_camel(name): _plain(one) for name, one in value.items() if name != "functions"}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


# -- a value -----------------------------------------------------------------------------------------------------------


def _show_value(key: "ChangeSetKey", id_: str, explained: "ExplainedValue | None", json: bool) -> int:
    if explained is None:
        every = f"`{command('get', key.workspace, key.change_set)}` shows all values"
        raise CommandFailed(f"{key.workspace}/{key.change_set} has no value {id_}; {every}")
    if json:
        console.write_json({"workspaceId": key.workspace, "changeSetId": key.change_set} | _value_object(explained))
        return 0
    from rebaser.cli.output.change_format import definition_text

    found, waits = explained.value, command("explain", key.workspace, key.change_set)
    rows = [
        ("value", f"{found.value.state}  {_text(found.value)}".rstrip()),
        ("definition", definition_text(found.definition)),  # type: ignore[arg-type] # never a `Remove`
        ("why", found.why),
        ("what to do", found.advice.replace("rebaser explain WS CS", waits)),
        ("path", " <- ".join(found.path)),
        ("defined", _blame_text(explained.blame)),
        ("origin defined", _blame_text(explained.origin)),
        ("used by", _ids_text(found.dependents, found.dependent_count)),
    ]
    console.table(("", id_), [row for row in rows if row[1]], styles={0: "cyan"}, headings=False)
    if found.inputs:
        console.table(
            ("input", "id", "state", "value"),
            [_input_row(one) for one in found.inputs],
            title=f"Inputs: {found.input_count:,}",
            headings=True,
        )
    if len(found.inputs) < found.input_count:
        console.note(f"{len(found.inputs):,} of {found.input_count:,} inputs are shown")
    return 0


def _text(value: "Value") -> str:
    if value.error is not None:
        return f"{value.error.code}: {value.error.message}"
    text = console.json_text(value.value) if value.state != "unset" else ""
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def _input_row(one: "ValueInput") -> tuple[str, str, str, str]:
    if one.matches is not None:
        return one.name, one.id, "pattern", f"matches {one.matches:,}"
    if one.value is None:
        return one.name, one.id, "missing", ""
    return one.name, one.id, str(one.value.state), _text(one.value)


def _ids_text(ids: tuple[str, ...], count: int) -> str:
    shown = ids[:10]
    more = f" and {count - len(shown):,} more" if count > len(shown) else ""
    return f"{count:,}: {', '.join(shown)}{more}" if count else ""


def _blame_text(blame: "Blame | None") -> str:
    if blame is None:
        return ""
    from rebaser.cli.output.change_format import blame_place, copies_text, time_text

    parts = [f"{blame.id} in commit {blame_place(blame)}"]
    if blame.entry is not None:
        parts.append(f"at {time_text(blame.entry.time)}")
    if blame.request is not None:
        decision, who = blame.request
        parts.append(f"by {who.author or 'request'} ({decision.request_id})")
    return ", ".join([" ".join(parts), *copies_text(blame)])


def _value_object(explained: "ExplainedValue") -> dict[str, Any]:
    from rebaser.cli.output.change_format import blame_json, definition_json

    found = explained.value
    return {
        "id": found.id,
        **_value_json(found.value),
        "definition": definition_json(found.definition),  # type: ignore[arg-type] # never a `Remove`
        "why": found.why,
        "advice": found.advice,
        "path": list(found.path),
        "origin": found.origin or None,
        "originCommit": found.origin_commit or None,
        "defined": None if explained.blame is None else blame_json(explained.blame),
        "originDefined": None if explained.origin is None else blame_json(explained.origin),
        "inputs": [
            {"name": one.name, "id": one.id, "matches": one.matches}
            | (_value_json(one.value) if one.value is not None else {"state": None})
            for one in found.inputs
        ],
        "inputCount": found.input_count,
        "dependents": list(found.dependents),
        "dependentCount": found.dependent_count,
    }


def _value_json(value: "Value") -> dict[str, Any]:
    error = None if value.error is None else asdict(value.error)
    return {"value": value.value, "state": value.state.value, "error": error}
