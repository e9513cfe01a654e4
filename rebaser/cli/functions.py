"""`rebaser functions`: what can derive a value here."""

from rebaser.cli import console
from rebaser.cli.options import Json


def functions(*, json: Json = False) -> int:
    """List the functions that can derive a value.

    Built in, and installed as plug-ins (entry points of the group rebaser.functions). A plug-in that does not load is
    named on stderr. Inputs and params: the names that it knows; any: whatever they are called.
    """
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


def _known(names: tuple[str, ...] | None) -> str:
    return "any" if names is None else ", ".join(names) or "none"


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
