"""`rebaser functions`: what can derive a value here."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix

if TYPE_CHECKING:
    from rebaser_client.admin.status import ServerInfo, Signature

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
    named on stderr. Inputs and params: the names that it knows; any: whatever they are called, as with a plug-in that
    declares none (`Function(…, inputs=…, params=…)`); ?: an older server, which does not tell.
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
    from rebaser.cli.runner import run_async

    found: list[ServerInfo] = []
    code = run_async(partial(_ask, nats, prefix, found))
    if code:
        return code
    if not found:
        raise CommandFailed(f"no server answered within {ANSWERS:g} s")
    rows: list[tuple[str, Signature | None, list[str]]] = []
    names = sorted({name for one in found for name in one.functions})
    for name in names:
        rows += [
            (name, signature, [one.id for one in having]) for signature, having in _by_signature(found, name).items()
        ]
    if json:
        for name, signature, ids in rows:
            known = {
                "inputs": signature and _listed(signature.inputs),
                "params": signature and _listed(signature.params),
            }
            console.write_json({"name": name, "servers": ids, "of": len(found), **known})
    else:
        console.table(
            ("function", "inputs", "params", "servers"),
            [
                (
                    name,
                    _known(signature.inputs) if signature else "?",
                    _known(signature.params) if signature else "?",
                    "all" if len(ids) == len(found) else ", ".join(ids),
                )
                for name, signature, ids in rows
            ],
        )
    return 0


def _by_signature(found: list["ServerInfo"], name: str) -> dict["Signature | None", list["ServerInfo"]]:
    """The servers that have function `name`, by what theirs knows; None if they do not tell (older ones)."""
    having: dict[Signature | None, list[ServerInfo]] = {}
    for one in found:
        if name in one.functions:
            having.setdefault(one.signatures.get(name), []).append(one)
    return having


async def _ask(nats: str, prefix: str, found: list["ServerInfo"]) -> None:
    from rebaser.cli.connect import ping_servers

    found += await ping_servers(nats, prefix, None, ANSWERS)


def _known(names: tuple[str, ...] | None) -> str:
    return "any" if names is None else ", ".join(names) or "none"


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
