"""Writes the reference pages from the code: `uv run python -m tests.docs.generate`.

Settings come from the fields of `Settings`, commands from the help of the command line, events from the sources, and
the names of the client from signatures and docstrings.
"""

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from rebaser.settings import Settings
from rebaser.telemetry import catalogue
from rebaser.telemetry.instruments import Histogram
from rebaser_core.limits import Limits
from tests.docs.client_api import client_api_page
from tests.docs.error_codes import error_codes_page
from tests.docs.pages import COMMAND, DOCS, HEAD, PACKAGES, ROOT, cell
from tests.kubernetes import schema
from tests.monitoring import render
from tests.monitoring.dashboard import dashboard

LOG_CALLS = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}
PASSED_ON = ("self._failure_of", "PullWarning")  # functions that log the event that they are given
WIDTH = 100  # characters of a line of help

LIMITS = {
    "max_request_bytes": "Bytes of one request, its blob included.",
    "max_updates": "Updates of one request.",
    "max_value_bytes": "Bytes of one value.",
    "max_depth": "Arrays and maps inside each other.",
    "max_inputs": "Inputs of one derived value.",
    "max_matches": "Patterns among the inputs of one derived value.",
    "max_id_length": "Characters of an id, pattern, input name or function name.",
}
DEFAULTS = {"server_id": "host name and process id"}


def settings_page() -> str:
    """Return the page of settings: a table of all settings, and a table of the bounds on requests."""
    lines = [
        HEAD,
        "# Settings",
        "",
        "For operators: all settings of a server, with their defaults. A setting comes from a flag of `rebaser serve`,",
        "or, without a flag, from an environment variable; otherwise, it has its default. Times are in seconds, sizes",
        "in bytes. A setting without a default leaves existing streams as they are; [limits](../limits.md) lists the",
        "initial settings of new streams. OpenTelemetry names the other variables of [traces](../traces.md).",
        "",
        "| variable | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        if name == "limits":
            continue
        assert field.description, f"{name} has no description"
        bounds = bounds_of([*field.metadata, *inner_bounds(field.annotation)])
        kind = type_of(field.annotation) + (f", {bounds}" if bounds else "")
        lines.append(
            f"| `REBASER_{name.upper()}` | {kind} | {default_of(name, field.default)} | {cell(field.description)} |"
        )
    lines += ["", "## Bounds on a request", "", "| variable | default | bounds |", "|---|---|---|"]
    for bound in fields(Limits):
        variable = f"`REBASER_LIMITS__{bound.name.upper()}`"
        lines.append(f"| {variable} | {getattr(Limits(), bound.name):,} | {LIMITS[bound.name]} |")
    return "\n".join(lines) + "\n"


def type_of(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{word}`" for word in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return type_of(get_args(annotation)[0])
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if kinds:
        return " or ".join(type_of(kind) for kind in kinds)
    names = {
        "str": "text",
        "int": "integer",
        "float": "number",
        "Path": "path",
        "SecretStr": "secret",
        "bool": "`true` or `false`",
    }
    return names[annotation.__name__]


def inner_bounds(annotation: Any) -> list[Any]:
    """Return the bounds of the type in an optional setting."""
    kinds = [kind for kind in get_args(annotation) if get_origin(kind) is Annotated]
    return [bound for kind in kinds for field in get_args(kind)[1:] for bound in field.metadata]


def bounds_of(metadata: list[Any]) -> str:
    signs = {"ge": "at least", "gt": "more than", "le": "at most"}
    told = [
        f"{sign} {getattr(bound, name):,}" for bound in metadata for name, sign in signs.items() if hasattr(bound, name)
    ]
    return ", ".join(told)


def default_of(name: str, default: Any) -> str:
    if name in DEFAULTS:
        return DEFAULTS[name]
    if default is None:
        return ""
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    if isinstance(default, str):
        return f"`{default}`" if default else "empty"
    return f"{default:,g}" if isinstance(default, float) else f"{default:,}"


def commands_page() -> str:
    """Return the page of commands: the help of each command as a terminal shows it."""
    for variable in [name for name in os.environ if name.startswith("REBASER_")]:
        del os.environ[variable]  # The help would show the values of this environment.
    os.environ["COLUMNS"] = str(WIDTH)
    import typer.main

    from rebaser.cli.app import app

    lines = [
        HEAD,
        "# Commands",
        "",
        "The help text of each command. Every option can also come from the environment variable that its help shows.",
        "",
    ]
    for words, text in helps(typer.main.get_command(app), ("rebaser",), None):
        lines += [f"## {' '.join(words)}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines)


def helps(command: Any, words: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    context = command.make_context(
        words[-1], [], parent=parent, resilient_parsing=True, max_content_width=WIDTH, terminal_width=WIDTH
    )
    yield words, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from helps(child, (*words, name), context)


def log_events() -> list[tuple[str, str]]:
    """Return all log events of level info and above with their levels, sorted: the values of a label."""
    # The first events cannot be found below, because the code computes their names.
    found = {("pull_failed", "error")}
    found |= {(f"{what}_deferred", "error") for what in ("dvu", "branch_pull")}
    found |= {(f"{what}_suspected", "warning") for what in ("dvu", "branch_pull")}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if path.relative_to(ROOT).parts[1] in ("cli", "doctor", "embedded"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            call, event = ast.unparse(node.func), node.args[0].value
            level = LOG_CALLS.get(call.rpartition(".")[2])
            if level is not None and isinstance(event, str) and call.split(".")[-2].strip("_") in ("log", "logger", ""):
                found.add((event, level))
            if call in PASSED_ON and isinstance(event, str):
                found.add((event, "warning"))
    return sorted(found)


def events_module() -> str:
    """Return a Python module with `log_events`."""
    lines = [f'    ("{event}", "{level}"),' for event, level in log_events()]
    head = f'"""The log events of a server, with their levels. Generated by `{COMMAND}`: do not edit."""'
    return "\n".join([head, "", "EVENTS = (", *lines, ")", ""])


def metrics_page() -> str:
    """Return the page of metrics, with a table of all of them."""
    lines = [
        HEAD,
        "# Metrics",
        "",
        "For operators: what `/metrics` of a server shows; [operating](../operating.md#metrics) explains its use.",
        "Times are in seconds, sizes in bytes. All series exist from the start, with the value 0. There are also the",
        "`process_` metrics of the Prometheus client.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for row in (*catalogue.INSTRUMENTS, *catalogue.GAUGES):
        labels = "; ".join(label_of(name, values) for name, values in row.labels.items())
        lines.append(f"| `{catalogue.PREFIX}{row.name}` | {row.kind} | {labels} | {cell(row.meaning)} |")
    lines += ["", "## Buckets", "", "| histogram | upper bounds |", "|---|---|"]
    for row in catalogue.INSTRUMENTS:
        if isinstance(row, Histogram):
            lines.append(f"| `{catalogue.PREFIX}{row.name}` | {' '.join(f'{bound:g}' for bound in row.bounds)} |")
    lines += ["", "## Log events", "", "Values of the label `event`, by level. Any other event counts as `other`.", ""]
    events = log_events()
    for level in catalogue.LEVELS:
        names = ", ".join(f"`{event}`" for event, its in events if its == level)
        lines += [f"- {level}: {names}"]
    return "\n".join(lines) + "\n"


def label_of(name: str, values: Sequence[str]) -> str:
    if name in ("event", "version", "python", "nats"):
        return f"`{name}`"
    return f"`{name}`: {', '.join(values)}"


def pages() -> dict[Path, str]:
    """Return the content of each generated file by path."""
    folder = DOCS / "reference"
    return {
        folder / "settings.md": settings_page(),
        folder / "commands.md": commands_page(),
        folder / "error-codes.md": error_codes_page(),
        folder / "client-api.md": client_api_page(),
        folder / "metrics.md": metrics_page(),
        DOCS / "runbooks.md": render.runbooks(HEAD),
        ROOT / "deploy" / "monitoring" / "alerts.yaml": render.rules(f"Generated by `{COMMAND}`: do not edit."),
        ROOT / "deploy" / "monitoring" / "dashboard.json": dashboard(),
        ROOT / "deploy" / "helm" / "rebaser" / "values.schema.json": schema.schema(),
        ROOT / "rebaser" / "telemetry" / "events.py": events_module(),
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
