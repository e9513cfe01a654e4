"""`rebaser functions`: what can derive a value here."""

from rebaser.cli import console
from rebaser.cli.options import Json


def functions(*, json: Json = False) -> int:
    """List the functions that can derive a value.

    Built in, and installed as plug-ins (entry points of the group rebaser.functions). A plug-in that does not load is
    named on stderr.
    """
    from rebaser.dvu.functions.registry import builtins, registry

    found, own = registry(), builtins()
    rows = []
    for name, function in sorted(found.functions.items()):
        doc = " ".join(function.doc.split())
        kind = "built-in" if name in own else "plug-in"
        if json:
            console.write_json({"name": name, "kind": kind, "doc": doc})
        rows.append((name, kind, doc))
    if not json:
        console.table(("function", "kind", "what it gives"), rows)
    for name, reason in found.broken.items():
        console.note(f"plug-in {name} does not load: {reason}")
    return 0
