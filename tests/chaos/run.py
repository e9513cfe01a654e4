"""Rounds of chaos: clients write, faults strike, the faults end, all work is done, and the checker checks."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rebaser_core.ids import ChangeSetKey
from tests.chaos.checker import Expectations, Violation, check, excerpt
from tests.chaos.history import read_history
from tests.chaos.nemeses import Nemesis, kinds
from tests.chaos.rest import at_rest
from tests.chaos.system import System, installation

SHOWN = 8  # violations in a report
ROUNDS = 3  # rounds for which an installation is used


@dataclass(frozen=True)
class Options:
    """The options of a run. `seconds` is the total time of faults, `round_seconds` that of one round. No `nemeses`
    means all."""

    seed: int
    seconds: float
    round_seconds: float = 60.0
    clustered: bool = False
    nemeses: tuple[str, ...] = ()
    servers: int = 3
    clients: int = 3
    change_sets: int = 4
    spark: bool = True

    def names(self) -> list[str]:
        known = kinds(self.clustered)
        return sorted(self.nemeses or (name for name in known if self.spark or name != "spark"))


@dataclass
class Report:
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    # Warnings and errors in the logs of servers, which show the effects of faults.
    told: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    violations: int = 0
    text: str = ""

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, {self.rounds} rounds, {self.faults.total()} faults: {_counts(self.faults)}",
            f"clients: {_counts(self.operations)}",
            f"servers: {_counts(self.told)}",
            f"violations: {self.violations}",
            self.text,
        ]
        return "\n".join(lines).rstrip()


async def run(options: Options, folder: Path) -> Report:
    """Run rounds until the time is over, or until the first violation."""
    rng = random.Random(options.seed)
    report = Report(options.seed)
    left = options.seconds
    while left > 0 and not report.violations:
        fresh = folder / f"installation-{report.rounds}"
        async with installation(fresh, clustered=options.clustered, spark=options.spark) as system:
            await system.start_servers(options.servers, {})
            for _ in range(ROUNDS):
                seconds = min(left, options.round_seconds)
                left -= seconds
                await play(system, options, seconds, random.Random(rng.random()), report)
                if left <= 0 or report.violations:
                    break
            report.told += system.told()
    return report


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


async def play(system: System, options: Options, seconds: float, rng: random.Random, report: Report) -> None:
    """Run one round in a workspace of its own."""
    report.rounds += 1
    began = time.monotonic()
    workspace = f"round{report.rounds}"
    system.start_histories(workspace)
    keys = [ChangeSetKey.of(workspace, f"cs{number}") for number in range(options.change_sets)]
    plan = {"workspace": workspace, "change_sets": [key.change_set for key in keys], "derived": options.spark}
    nemesis = Nemesis(system, rng, options.names())
    await system.start_clients(options.clients, plan, rng)
    await nemesis.run(seconds)
    complaints = await system.stop_clients()
    evidence, restless = await at_rest(system, keys)
    history = read_history(system.histories.glob("*.jsonl"))
    violations = [Violation(6, "", text) for text in (*complaints, *system.ended)] + restless
    violations += check(
        history, evidence, Expectations(may_die="memory" in options.names(), fresh_reads=not options.clustered)
    )
    report.faults += nemesis.counts
    report.operations += history.counts
    report.operations["decided"] += sum(len(commit.requests) for one in evidence for commit in one.log)
    report.operations["dvu"] += sum(commit.kind == "dvu" for one in evidence for commit in one.log)
    report.violations += len(violations)
    report.text = "\n".join(excerpt(one, evidence, history) for one in violations[:SHOWN])
    print(f"round {report.rounds}: {time.monotonic() - began:.0f} s, {len(violations)} violations", flush=True)
