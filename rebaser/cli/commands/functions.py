"""`rebaser functions`: lists the functions that can derive a value."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client.admin.servers import ServerInfo, Signature

ANSWER_TIMEOUT = 2.0  # seconds


def functions(
    *,
    servers: Annotated[
        bool, typer.Option("--servers", help="List the functions of running servers instead.", allow_from_autoenv=False)
    ] = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """List the functions that can derive a value.

    These are the built-in functions and the plug-ins installed here (entry points of the group rebaser.functions).
    Plug-ins that cannot be loaded are reported on stderr.

    The columns "inputs" and "params" show the names that a function accepts; "any" means any name. A plug-in accepts
    any name unless it declares its names (`Function(…, inputs=…, params=…)`). "?" stands for an older server, which
    does not report names.
    """
    if servers:
        return _of_servers(nats, prefix, json)
    from rebaser.dvu.functions.registry import builtins, registry

    installed, built_in = registry(), builtins()
    rows = []
    for name, function in sorted(installed.functions.items()):
        doc = " ".join(function.doc.split())
        kind = "built-in" if name in built_in else "plug-in"
        if json:
            inputs, params = _listed(function.inputs), _listed(function.params)
            console.write_json({"name": name, "kind": kind, "inputs": inputs, "params": params, "doc": doc})
        rows.append((name, kind, _known(function.inputs), _known(function.params), doc))
    if not json:
        console.table(("function", "kind", "inputs", "params", "result"), rows)
    for name, reason in installed.broken.items():
        console.note(f"plug-in {name} cannot be loaded: {reason}")
    return 0


def _of_servers(nats: str, prefix: str, json: bool) -> int:
    from rebaser.cli.runner import run_async

    servers: list[ServerInfo] = []
    code = run_async(partial(_ask, nats, prefix, servers))
    if code:
        return code
    if not servers:
        raise CommandFailed(f"no server answered within {ANSWER_TIMEOUT:g} s; `rebaser doctor` checks the installation")
    rows: list[tuple[str, Signature | None, list[str]]] = []
    for name in sorted({name for server in servers for name in server.functions}):
        for signature, group in _by_signature(servers, name).items():
            rows.append((name, signature, [server.id for server in group]))
    if json:
        for name, signature, ids in rows:
            known = {
                "inputs": signature and _listed(signature.inputs),
                "params": signature and _listed(signature.params),
            }
            console.write_json({"name": name, "servers": ids, "of": len(servers), **known})
    else:
        console.table(
            ("function", "inputs", "params", "servers"),
            [
                (
                    name,
                    _known(signature.inputs) if signature else "?",
                    _known(signature.params) if signature else "?",
                    "all" if len(ids) == len(servers) else ", ".join(ids),
                )
                for name, signature, ids in rows
            ],
        )
    return 0


def _by_signature(servers: list["ServerInfo"], name: str) -> dict["Signature | None", list["ServerInfo"]]:
    """Group the servers that have the function `name` by the function's signature.

    The key None stands for older servers, which do not report signatures.
    """
    groups: dict[Signature | None, list[ServerInfo]] = {}
    for server in servers:
        if name in server.functions:
            groups.setdefault(server.signatures.get(name), []).append(server)
    return groups


async def _ask(nats: str, prefix: str, servers: list["ServerInfo"]) -> None:
    from rebaser.cli.connect import ping_servers

    servers += await ping_servers(nats, prefix, None, ANSWER_TIMEOUT)


def _known(names: tuple[str, ...] | None) -> str:
    return "any" if names is None else ", ".join(names) or "none"


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
