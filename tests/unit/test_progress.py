"""The progress of updates: it is counted per packet, and published only for updates that take long."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from rebaser.cli.output.entry_format import progress_line, progress_object
from rebaser.cli.output.wording import progress_text
from rebaser.dvu import update
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.runtime.progress import Progress
from rebaser.runtime.progress_reporter import MAX_REPORTED, ProgressReporter
from rebaser.runtime.recent_updates import MAX_CHANGE_SETS, MAX_UPDATES, RecentUpdates
from rebaser.settings import Settings
from rebaser_core import thresholds
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import DvuProgress
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Set
from tests.support.graphs import Book

TELLER = Settings(server_id="one", progress_every=3)


def teller(now: float, *running: tuple[str, Progress]) -> ProgressReporter:
    context = SimpleNamespace(
        settings=TELLER,
        now=lambda: now,
        engine=SimpleNamespace(tags={"ws.c": "rebaser-7"}),
        running_updates={ChangeSetKey("ws", name): one for name, one in running},
    )
    return ProgressReporter(cast("Any", context))


def test_updates_that_take_long_are_told_and_the_longest_come_first() -> None:
    planned = Progress(7, 100.0)
    planned.record(104.0, 3, 10)
    found = teller(106.0, ("a", Progress(5, 103.1)), ("b", Progress(6, 103.0)), ("c", planned)).slow()
    assert [one.report for one in found] == [
        DvuProgress("ws", "c", "one", 7, 3, 10, 6.0),
        DvuProgress("ws", "b", "one", 6, 0, None, 3.0),
    ]
    assert [one.spark_tag for one in found] == ["rebaser-7", ""]


def test_no_more_are_told_than_anybody_could_read() -> None:
    many = [(f"c{at}", Progress(1, float(at))) for at in range(MAX_REPORTED + 5)]
    found = teller(10_000.0, *many).slow()
    assert [one.report.change_set_id for one in found] == [f"c{at}" for at in range(MAX_REPORTED)]


def test_the_stages_of_an_update_add_up_over_its_waves() -> None:
    update = Progress(1, 100.0)
    for now, stage in ((101.0, "spark"), (103.0, "absorb"), (106.0, "spark"), (110.0, "absorb"), (115.0, "commit")):
        update.enter(now, stage, "packets", 1)
    update.end_stage(121.0)
    assert update.stages == {"plan": 1.0, "spark": 6.0, "absorb": 8.0, "commit": 6.0}


def test_an_update_is_silent_while_spark_processes_no_value() -> None:
    update = Progress(1, 100.0)
    assert update.silent(150.0) == 0.0, "it is planned"
    update.enter(150.0, "spark", "packets", 1)
    update.record(151.0, 0, 9)
    assert update.silent(160.0) == 10.0
    update.record(161.0, 4, 9)
    update.record(162.0, 4, 9)
    assert update.silent(171.0) == 10.0
    update.enter(172.0, "absorb", "packets", 1)
    assert update.silent(190.0) == 0.0


def test_only_recent_updates_are_kept() -> None:
    recent = RecentUpdates()
    keys = [ChangeSetKey("ws", f"c{at}") for at in range(MAX_CHANGE_SETS + 1)]
    for sequence in range(MAX_UPDATES + 2):
        recent.add(keys[0], sequence, {"plan": 1 / 3})
    assert recent.of(keys[0])[0] == {"commit": 2, "stages": {"plan": 0.333333}}
    assert len(recent.of(keys[0])) == MAX_UPDATES
    for key in keys[1:-1]:
        recent.add(key, 1, {})
    recent.add(keys[0], 99, {})
    recent.add(keys[-1], 1, {})
    kept = [bool(recent.of(key)) for key in (keys[0], keys[1], keys[2], keys[-1])]
    assert kept == [True, False, True, True], "the one that was not updated for the longest time is gone"


@pytest.mark.anyio
async def test_progress_that_cannot_be_told_is_told_later() -> None:
    """Otherwise, the failure would end the server."""
    told = list[str]()

    async def publish(subject: str, *_: object) -> None:
        told.append(subject)
        if len(told) == 1:
            raise TransientError("the connection is gone")

    settings = TELLER.model_copy(update={"progress_every": 0.001})
    connection = SimpleNamespace(publish=publish)
    context = SimpleNamespace(
        settings=settings,
        now=lambda: 100.0,
        connection=connection,
        subjects=Subjects(""),
        engine=SimpleNamespace(tags={}),
        running_updates={ChangeSetKey("ws", name): Progress(1, 0.0) for name in ("a", "b")},
    )
    reporter = ProgressReporter(cast("Any", context))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(reporter.run)
            while len(told) < 3:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert [subject.split(".")[-1] for subject in told[:3]] == ["a", "a", "b"]


class Engine:
    """An engine whose results arrive one packet at a time."""

    async def evaluate(
        self, packets: Sequence[bytes], *, arrived: Callable[[int, int], None], **_: object
    ) -> list[list[bytes]]:
        found = []
        for packet in packets:
            found.append(evaluate_packet(packet))
            arrived(len(found), 0)
        return found

    async def share(self, _: object) -> None:
        return None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        (Thresholds(), [2, 6]),
        (Thresholds(packet_bytes=1, task_min_elements=1), [2, 3, 4, 4, 5, 6]),  # two waves of two packets
        (Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30), [0, 4]),
    ],
)
async def test_what_is_done_is_counted(limits: Thresholds, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    # Members of cycles are known without computing.
    cycle = [Derive("x", "sum", {"of": "y"}), Derive("y", "sum", {"of": "x"})] if limits.full_plan_min_values else []
    chains = [Derive("c", "sum", {"x": "a"}), Derive("d", "sum", {"x": "c"}), Derive("e", "sum", {"x": "b"})]
    book = Book([Set("a", 1), Set("b", 2), *chains, Derive("f", "sum", {"x": "e"}), *cycle])
    monkeypatch.setattr(thresholds, "now", limits)
    told: list[tuple[int, int]] = []
    stages: list[tuple[str, str, int]] = []
    with book.state.view() as view:
        about: dict[str, Any] = {
            "progress": lambda *given: told.append(given),
            "entered": lambda *one: stages.append(one),
        }
        await update.update(view, cast("Any", Engine()), label="x", **about)
    plan = "packets" if cycle else "full graph"
    waves = range(1, 3 if len(steps) == 6 else 2)
    assert stages == [(stage, plan, wave) for wave in waves for stage in ("spark", "absorb")]
    assert [done for done, _ in told] == steps
    assert {total for _, total in told} == {steps[-1]}


TOLD_ONE = DvuProgress("shop", "main", "one\x1b[31m", 41, 250_000, 1_000_000, 12.5)


def test_for_people() -> None:
    assert progress_text(0, None, 4.0) == "planning, 4 s"
    assert progress_text(0, 0, 4.0) == "planning, 4 s"
    assert progress_text(999_999, 1_000_000, 60.4) == "99 % of 1,000,000 values, 60 s"
    line = progress_line(TOLD_ONE, 0, columns=False)
    assert line.split("\t") == [
        *("", "1970-01-01T00:00:00.000Z", "shop/main", "progress", ""),
        "25 % of 1,000,000 values, 12 s; by one\\x1b[31m",
    ]


def test_for_machines() -> None:
    found = progress_object(TOLD_ONE, 0)
    assert (found["kind"], found["done"], found["total"], found["covers"]) == ("progress", 250_000, 1_000_000, 41)
