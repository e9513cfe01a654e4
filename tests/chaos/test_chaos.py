"""A short form of the chaos tests; `python -m tests.chaos` runs the long form."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import branches
from tests.chaos.run import Options, Report, run
from tests.support.draws import drawing

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

SEED = drawing("chaos").randrange(10**9)


def judge(report: Report, *events: str) -> None:
    print(report)
    assert not report.violations, str(report)
    assert min(report.operations[event] for event in events) > 0, str(report)


@pytest.mark.spark
async def test_a_quarter_of_the_faults_around_one_nats_server(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The quarter is drawn anew in each run, and printed at its end."""
    known = Options(SEED, seconds=5).names()
    drawn = sorted(drawing("a quarter of the faults").sample(known, -(-len(known) // 4)))
    record_property("told", f"chaos: {' '.join(drawn)}")
    await under_faults(tmp_path, tuple(drawn))


@pytest.mark.long  # a minute; the short form draws a quarter of the faults in each run
@pytest.mark.spark
async def test_every_fault_around_one_nats_server(tmp_path: Path) -> None:
    report = await under_faults(tmp_path, ())
    assert report.told["nats_disconnected"] > 0, str(report)


async def under_faults(folder: Path, nemeses: tuple[str, ...]) -> Report:
    options = Options(
        SEED, seconds=5, nemeses=nemeses, servers=2, clients=2
    )  # long enough that each fault strikes at least once
    report = await run(options, folder)
    judge(report, "applied", "stored", "dvu")
    assert set(report.faults) == set(options.names())
    return report


@pytest.mark.parametrize(
    ("seconds", "shared"),
    [pytest.param(6.0, False, id="short"), pytest.param(120.0, True, marks=pytest.mark.long, id="long")],
)
async def test_branches_are_what_plain_dictionaries_say_while_servers_die(
    tmp_path: Path, seconds: float, shared: bool, record_property: Callable[[str, object], None]
) -> None:
    seed = drawing("chaos of branches").randrange(10**9)
    authors, option = (4, "") if shared else (3, " --alone")
    record_property("told", f"branches: python -m tests.chaos.branches --seed {seed} --authors {authors}{option}")
    print(await branches.run(seed, seconds, tmp_path, authors, shared=shared))


@pytest.mark.long  # half a minute; the acceptance test of a cluster kills a leader, too
async def test_leaders_of_a_cluster_die(tmp_path: Path) -> None:
    """Each stream has three copies. The nodes that lead them are killed, paused and replaced, and servers die, too."""
    nemeses = ("leader", "stepdown", "node", "kill")
    options = Options(SEED, seconds=10, clustered=True, nemeses=nemeses, servers=2, clients=2, spark=False)
    report = await run(options, tmp_path)
    judge(report, "applied")
    assert set(report.faults) == set(nemeses)
