"""`rebaser functions`: what can derive a value here."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli import console
from rebaser.cli.failures import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix

if TYPE_CHECKING:
    from rebaser_client.overview import ServerInfo

ANSWERS = 2.0  # seconds that servers have


def functions(
    *,
    servers: Annotated[
        bool, typer.Option("--servers", help="Ask which functions servers have, instead.", allow_from_autoenv=False)
    ] = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """List the functions that can derive a value, here or with servers.

    Built in, and installed as plug-ins (entry points of the group rebaser.functions). A plug-in that does not load is
    named on stderr. Inputs and params: the names that it knows; any: whatever they are called.
    """
    if servers:
        return _of_servers(nats, prefix, json)
    from rebaser.dvu.functions.registry import builtins, registry

    found, own = registry(), builtins()
    rows = []
    for name, function in sorted(found.functions.items()):
        doc = " ".join(function.doc.split())
        kind = "built-in" if name in own else "plug-in"
        if json:
            inputs, params = _listed(function.inputs), _listed(function.params)
            console.write_json({"name": name, "kind": kind, "inputs": inputs, "params": params, "doc": doc})
        rows.append((name, kind, _known(function.inputs), _known(function.params), doc))
    if not json:
        console.table(("function", "kind", "inputs", "params", "what it gives"), rows)
    for name, reason in found.broken.items():
        console.note(f"plug-in {name} does not load: {reason}")
    return 0


def _of_servers(nats: str, prefix: str, json: bool) -> int:
    from rebaser.cli.running import run_async

    found: list[ServerInfo] = []
    code = run_async(partial(_ask, nats, prefix, found))
    if code:
        return code
    if not found:
        raise CommandFailed(f"no server answered within {ANSWERS:g} s")
    names = sorted({name for one in found for name in one.functions})
    having = [(name, [one.id for one in found if name in one.functions]) for name in names]
    if json:
        for name, ids in having:
            console.write_json({"name": name, "servers": ids, "of": len(found)})
    else:
        console.table(
            ("function", "servers"),
            [(name, "all" if len(ids) == len(found) else ", ".join(ids)) for name, ids in having],
        )
    return 0


async def _ask(nats: str, prefix: str, found: list["ServerInfo"]) -> None:
    from rebaser.cli.access import live_servers

    found += await live_servers(nats, prefix, None, ANSWERS)


def _known(names: tuple[str, ...] | None) -> str:
    return "any" if names is None else ", ".join(names) or "none"


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
