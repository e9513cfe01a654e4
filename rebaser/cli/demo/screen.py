"""Prints the demo as one screen of text, with colours if stdout is a terminal."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from rebaser.cli.demo.environment import Environment
from rebaser.cli.demo.story import Edit
from rebaser.cli.output import console
from rebaser_core.values import State, Value

if TYPE_CHECKING:
    from rich.status import Status

TOP = 3  # maximum number of distributions that are shown
SHOWN_DIFFERENCES = 10  # maximum number of differences that are shown
MAX_TEXT = 240  # maximum number of characters of a value


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one request.

    `updates` is the number of updates in the request. `values` contains all values after the request. `applied` is the
    number of seconds until the request was applied, and `derived` until the derived values were up to date.
    """

    updates: int
    values: Mapping[str, Value]
    applied: float
    derived: float


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """The results of the scene on a branch, which edits the distribution `name`.

    `change_set` and `branch` are names. `follows` is the number of derived values that the edit in the branch changed.
    `conflict` contains the sizes at the base, in the change set and in the branch. `before`, `after_apply` and
    `after_undo` contain some values of the change set as texts, by id; `in_branch` contains values of the branch in the
    same form.
    """

    name: str
    change_set: str
    branch: str
    follows: int
    conflict: tuple[int, int, int]
    before: Mapping[str, str]
    in_branch: Mapping[str, str]
    after_apply: Mapping[str, str]
    after_undo: Mapping[str, str]


class Screen:
    """Prints each step of the demo once the step is complete."""

    def __init__(self) -> None:
        self._out = console.out()
        self._busy: Status | None = None

    def opening(self, data: Path) -> None:
        self._line("Rebaser demo", "bold")
        self._line("The Python distributions installed here become a graph of values: sizes and requirements are set,")
        self._line("closures, totals and depths are derived on Spark.")
        self._line(f"Starting nats-server, a Rebaser server and Spark in {data} ...", "dim")
        self._wait("starting")

    def ready(self, seconds: float) -> None:
        self._line(f"Ready for requests after {console.duration_text(seconds)}; Spark starts in the background.", "dim")
        self._wait("reading the installed distributions")

    def environment(self, environment: Environment) -> None:
        edges = sum(len(distribution.requires) for distribution in environment.values())
        self._line(f"{len(environment)} Python distributions are installed here, with {edges} requirements.")
        self._wait("applying, then deriving")

    def first(self, step: StepResult, environment: Environment, *, was_warm: bool) -> None:
        values = step.values
        self._head(1, "The environment as installed", step.updates)
        note = "" if was_warm else ", including the start of Spark"
        self._facts(
            f"applied in {console.duration_text(step.applied)}, derived in {console.duration_text(step.derived)}{note}"
        )
        names = sorted(environment, key=lambda name: _number(values, f"dist/{name}/total"), reverse=True)[:TOP]
        for name in names:
            total, depth = shown(values, f"dist/{name}/total"), shown(values, f"dist/{name}/depth")
            self._fact(
                f"{name} and all that it requires", f"{shown(values, f'dist/{name}/closure')}, {total}, depth {depth}"
            )
        self._fact("all distributions", f"{shown(values, 'env/size')}, deepest {shown(values, 'env/deepest')}")
        self._wait("editing")

    def step(self, number: int, edit: Edit, before: StepResult, after: StepResult) -> None:
        changed = sum(1 for id_, value in after.values.items() if before.values.get(id_) != value)
        self._head(number, edit.title, after.updates)
        self._facts(
            f"applied in {console.duration_text(after.applied)}, derived in {console.duration_text(after.derived)}; "
            f"{changed} of {len(after.values)} values changed"
        )
        for id_ in edit.watch:
            old, new = shown(before.values, id_, brief=True), shown(after.values, id_)
            self._fact(id_, new if old == new else f"{old} -> {new}")
        self._wait("editing")

    def branch(self, number: int, facts: BranchFacts) -> None:
        """Print each step of the scene on a branch, together with the command for this step."""
        head, branch, name = facts.change_set, facts.branch, facts.name
        base, theirs, ours = (console.size_text(size) for size in facts.conflict)
        size = "env/size"
        self._head(number, f"A branch tries out a larger {name}", 1)
        self._fact("rebaser branch", f"{branch} begins with all values of {head}")
        self._fact("rebaser enqueue", f"on the branch, {name} grows from {base} to {ours}")
        self._fact(
            "rebaser diff --derived",
            f"{facts.follows} derived values follow: {size} {facts.before[size]} -> {facts.in_branch[size]}",
        )
        self._fact("rebaser get", f"in {head}, nothing has changed: {size} {facts.before[size]}")
        self._fact("rebaser rebase", f"there, {name} has grown to {theirs} meanwhile: a conflict")
        self._fact("rebaser conflicts", f"dist/{name}/size: base {base}, {head} {theirs}, {branch} {ours}")
        self._fact("rebaser resolve", f"take the size of the branch: {ours}")
        self._fact("rebaser apply", f"all of the branch in one commit of {head}: {size} {facts.after_apply[size]}")
        self._fact("rebaser undo", f"the apply is reverted: {size} {facts.after_undo[size]}")
        self._wait("checking")

    def verdict(self, checked: int, differences: Sequence[str]) -> None:
        """Print the result of the independent check."""
        self.stop()
        self._line()
        if differences:
            self._line(f"WRONG: {len(differences)} values differ from those computed independently:", "bold red")
            for line in differences[:SHOWN_DIFFERENCES]:
                self._line(f"   {line}", "red")
            return
        self._line(f"All {checked:,} values equal those computed directly from importlib.metadata.", "bold green")

    def closing(self, data: Path, workspace: str, change_set: str, name: str, seconds: float) -> None:
        """Print commands to try next, with the distribution `name` as the example."""
        self.stop()
        self._line(f"Everything that the demo started has stopped; it took {seconds:.0f} s.", "dim")
        self._line("Its data is kept. To look at it:", "bold")
        rebaser = "uv run rebaser" if "UV_RUN_RECURSION_DEPTH" in os.environ else "rebaser"  # as the user typed it
        what = f"{workspace} {change_set}"
        self._line(f"   {rebaser} dev --data {shlex.quote(str(data))}        # then, in another terminal:")
        self._line(f"   {rebaser} get {what} env/size dist/{name}/total dist/{name}/closure")
        self._line(f"   {rebaser} enqueue {what} --set dist/{name}/size=1 --wait derived")
        self._line(f"   {rebaser} log {what}")

    # -- parts -----------------------------------------------------------------------------------------------------

    def _head(self, number: int, title: str, updates: int) -> None:
        self._line()
        word = "update" if updates == 1 else "updates"
        self._out.print(Text.assemble((f"{number}  {title}", "bold cyan"), (f"  ({updates} {word})", "dim")))

    def _facts(self, text: str) -> None:
        self._line(f"   {text}")

    def _fact(self, name: str, text: str) -> None:
        self._out.print(Text.assemble("     ", (f"{console.safe(name):<38}", "dim"), " ", console.safe(text)))

    def _line(self, text: str = "", style: str = "") -> None:
        self._out.print(Text(console.safe(text), style))

    def _wait(self, what: str) -> None:
        """On a terminal, show a spinner until the next step."""
        self.stop()
        if self._out.is_terminal:
            self._busy = self._out.status(what)
            self._busy.start()

    def stop(self) -> None:
        """Remove the spinner."""
        if self._busy is not None:
            self._busy.stop()
            self._busy = None


def _number(values: Mapping[str, Value], id_: str) -> float:
    value = values[id_].value
    return value if isinstance(value, (int, float)) else -1


def shown(values: Mapping[str, Value], id_: str, *, brief: bool = False) -> str:
    """Return a value as the demo shows it."""
    value = values[id_]
    if value.state is State.ERROR and value.error is not None:
        more = f": {value.error.message}" if value.error.code == "cycle" and not brief else ""
        return f"error {value.error.code}{more}"[:MAX_TEXT]
    if id_.endswith("/closure") and isinstance(value.value, dict):
        return f"{len(value.value)} distribution{'' if len(value.value) == 1 else 's'}"
    if id_.endswith(("/size", "/total", "/largest")) and isinstance(value.value, int):
        return console.size_text(value.value)
    return console.json_text(value.value)
