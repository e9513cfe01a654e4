"""Makes the page of error codes from the sources: each class that descends from `RebaserError`, and each code that is
passed where an error is raised."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from rebaser.dvu import faults
from tests.docs.pages import HEAD, PACKAGES, ROOT, cell

REFUSED = {
    "before_creation": "A revert names commits that are not newer than the creation of their change set. If it has a "
    "parent, revert them there.",
    "behind": "The target has already taken an earlier position of the branch, after the base of the branch: rebase it"
    " first.",
    "closed": "The change set, or the branch to apply, is closed. Reopen it first.",
    "conflicts": "Values were edited on both sides, or have been edited again since the commits to revert."
    " Nothing was applied.",
    "deleted": "The change set is deleted. Create it anew, or reopen it. Or the request was redriven"
    " from the dead letters, and had died before the change set was created.",
    "exists": "A change set cannot be created under a name that is in use.",
    "invalid_definition": "The definition has an input or a parameter that its built-in function does not have.",
    "moved": "A value of the request was defined or removed, or came into conflict, after the position that the request"
    " expects. For a value that does not exist, the newest edit of the change set counts. Or the"
    " target of an apply was edited after the position that it expects or, if it is strict, after the base of the"
    " branch. Or the target was created after the base, because it replaces"
    " an earlier change set of its name. Or a revert in a branch names commits of the target after the base.",
    "no_such_change_set": "The change set to create from, apply, protect or close does not exist, or did not"
    " exist at that position.",
    "no_such_position": "The commits to revert, or the position to create from or to apply, are beyond the end"
    " of the log. Or the log has none of the commits that a revert names.",
    "no_such_request": "A revert names a commit and a request that this commit did not decide.",
    "not_its_target": "A change set branches from its parent or from the target of its parent, and can be"
    " applied only to that target. A revert in it can only name commits of the target, or its own.",
    "not_a_branch": "A change set without a target cannot be rebased.",
    "nothing_to_recompute": "A recompute was requested, but no value is derived, or none by the named function.",
    "poison": "Servers that tried the request died, hung or failed.",
    "protected": "The change set refuses edits and reverts, and cannot be deleted. Branches can be applied to it.",
    "purged": "The commits that a revert names, the position to create from or to apply, or the deleted state can no"
    " longer be read.",
    "request_id_reused": "A request with the same id but different content was decided before.",
    "self": "A change set cannot be created from itself, be its own target, be applied to itself, or be rebased onto"
    " itself.",
    "stale": "Derived values of the branch to apply are not up to date. Wait until they are.",
    "target_is_open": "A branch can be rebased onto the target of its target only if its target is closed.",
    "too_large": "The changes of a branch, or the commits to revert, are too many for one request.",
    "unresolved": "The branch to apply has conflicts. Settle them first (`rebaser conflicts`, `rebaser resolve`).",
    "unsupported": "The server keeps no history (`REBASER_HISTORY_FOR=0`), which reverts and branches need.",
    "skipped": "The request is at or below the decided sequence and has no recorded outcome. This should never happen.",
}


FAULTS = {
    "cycle": "The value depends on itself. The message names the members of the cycle; the origin is the smallest id.",
    "failed": "The function raised an exception, or refused its inputs.",
    "unknown_function": "No server has the function.",
    "missing_input": "An input does not exist.",
    "failed_input": "An input has an error. Origin and message name the value where the failure began.",
    "not_finite": "The result is infinite or not a number.",
    "overflow": "An integer of the result does not fit in 64 bits.",
    "too_large": "The result, or all inputs together, exceed a size limit.",
    "crashed": "The function ended its process.",
}


@dataclass
class ErrorClass:
    name: str
    base: str
    module: str
    doc: str
    code: str | None
    disposition: str | None


@dataclass(frozen=True)
class Raised:
    """A code that is passed to the constructor of an error: the class, the module, and the message there."""

    code: str
    kind: str
    module: str
    message: str


def error_codes_page() -> str:
    """Return the page of error codes: the classes, the codes that replace those of classes, and the codes of values."""
    classes, raised = scan()
    dispositions = {
        "RETRY": "the request stays in its queue; the server gives the change set back, and an owner retries later",
        "WAIT_FOR_NEWER": "as RETRY for a bounded time, because a newer server may come; then as REJECT",
        "REJECT": "the request is decided as `dead`: commit, dead letter, answer, delete",
        "FENCE": "another server owns the change set, so this owner stops",
        "RETRY_DVU": "the values stay stale, and the update runs again later",
        "EXIT": "the command or server prints one line with the reason, and ends",
    }
    lines = [
        HEAD,
        "# Error codes",
        "",
        "For programmers and operators: every error has a `code` for programs and a `message` for people. The class of",
        "an error has a *disposition*, which says what a server does about the error. There are two exceptions. If a",
        "request has an action, and a server finds while it reads the logs for that action that it is impossible, the",
        "request is refused, although the class has the disposition REJECT. And if reading a request or its logs fails",
        "with an error that may be permanent, such as damaged data, the request waits only for a bounded time.",
        "",
        "| disposition | what happens |",
        "|---|---|",
        *(f"| {word} | {text} |" for word, text in dispositions.items()),
        "",
        "## Classes",
        "",
        "| class | code | disposition | meaning |",
        "|---|---|---|---|",
    ]
    named = [kind for kind in classes.values() if not kind.name.startswith("_")]
    for kind in sorted(named, key=lambda kind: (PACKAGES.index(kind.module.split(".")[0]), kind.name)):
        code, disposition = inherited(kind, classes, "code"), inherited(kind, classes, "disposition")
        assert disposition in dispositions
        lines.append(f"| `{kind.name}` | `{code}` | {disposition} | {cell(kind.doc)} |")
    lines += [
        "",
        "## Refused requests",
        "",
        "Codes of requests that were decided and not applied, as they appear in answers and dead letters. The codes of",
        "classes with the disposition REJECT may also appear there.",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| `{code}` | {meaning} |" for code, meaning in REFUSED.items()),
        "",
        "## Codes",
        "",
        "Codes that replace the code of the class for a certain error, with up to four of their messages. `…` stands",
        "for the parts of a message that differ.",
        "",
        "| code | class | messages |",
        "|---|---|---|",
    ]
    by_code: dict[str, set[Raised]] = defaultdict(set)
    for one in raised:
        by_code[one.code].add(one)
    for code, places in sorted(by_code.items()):
        kinds = ", ".join(f"`{kind}`" for kind in sorted({place.kind for place in places if place.kind[0] != "_"}))
        messages = sorted({place.message for place in places if place.message.strip("… ")})
        lines.append(f"| `{code}` | {kinds} | {'; '.join(cell(message) for message in messages[:4])} |")
    lines += ["", "## Values", "", "Codes of derived values in state `error`.", "", "| code | meaning |", "|---|---|"]
    codes = {value for name, value in vars(faults).items() if name.isupper() and isinstance(value, str)}
    assert codes == FAULTS.keys(), codes ^ FAULTS.keys()
    lines += [f"| `{code}` | {meaning} |" for code, meaning in FAULTS.items()]
    return "\n".join(lines) + "\n"


def scan() -> tuple[dict[str, ErrorClass], list[Raised]]:
    """Return all error classes of the product, and all codes that are passed to their constructors."""
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    constants = {
        name.id: statement.value.value
        for tree in trees.values()
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant)
        for name in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(name, ast.Name) and isinstance(statement.value.value, str)
    }
    words = {node.value for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert words >= REFUSED.keys(), REFUSED.keys() - words
    classes = {"RebaserError": ErrorClass("RebaserError", "", "rebaser_core.errors", "", None, None)}
    found = 0
    while found != len(classes):  # A subclass may come before its base class.
        found = len(classes)
        for module, tree in trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    add_class(node, module, classes, constants)
    raised = [
        one
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes
        for one in codes_of(node, node.func.id, module, constants)
    ]
    return classes, raised


def add_class(node: ast.ClassDef, module: str, classes: dict[str, ErrorClass], constants: dict[str, str]) -> None:
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    if node.name != "RebaserError" and not (bases and bases[0] in classes):
        return
    code = disposition = None
    for statement in node.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and target.id == "default_code" and value is not None:
            code = str(value.value) if isinstance(value, ast.Constant) else constants[ast.unparse(value)]
        if isinstance(target, ast.Name) and target.id == "disposition" and isinstance(value, ast.Attribute):
            disposition = value.attr
    doc = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    classes[node.name] = ErrorClass(node.name, bases[0] if bases else "", module, doc, code, disposition)


def codes_of(node: ast.Call, kind: str, module: str, constants: dict[str, str]) -> Iterator[Raised]:
    message = text_of(node.args[0]) if node.args else ""
    for keyword in node.keywords:
        if keyword.arg == "code":
            choices = (
                [keyword.value.body, keyword.value.orelse] if isinstance(keyword.value, ast.IfExp) else [keyword.value]
            )
            for choice in choices:
                code = (
                    choice.value
                    if isinstance(choice, ast.Constant)
                    else constants.get(ast.unparse(choice).split(".")[-1])
                )
                if isinstance(code, str):
                    yield Raised(code, kind, module, message)


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "…"


def inherited(kind: ErrorClass, classes: dict[str, ErrorClass], field: str) -> str:
    while (value := getattr(kind, field)) is None:
        kind = classes[kind.base]
    return str(value)
