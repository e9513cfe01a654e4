"""`rebaser bench`: measures a running installation under load."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser.cli.commands.running.bench_load import LoadReport


def bench(
    *,
    change_sets: Annotated[int, typer.Option(min=1, max=10_000, help="Number of change sets under load at once.")] = 4,
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Requests in flight for each change set.")] = 16,
    requests: Annotated[
        int,
        typer.Option(
            min=1, max=10_000_000, help="Number of requests in the first phase, which waits until each is applied."
        ),
    ] = 4000,
    derived: Annotated[
        int,
        typer.Option(
            min=0,
            max=1_000_000,
            help="Number of requests in the second phase, which waits until derived values are up to date.",
        ),
    ] = 40,
    seconds: Annotated[float, typer.Option(min=1, help="Stop sending requests after this long.")] = 60.0,
    workspace: Annotated[str, typer.Option(metavar="WS", help="Workspace of the new change sets.")] = "bench",
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Measure a running installation under load.

    It creates change sets, sends requests with one update each, and prints requests per second and the latency of
    answers: first until a request is applied, then until the derived total of the change set is up to date. Finally, it
    reads the logs and the values back, and checks that every request was applied once and in order, and that every
    value is correct. If one of these checks fails, the exit code is 1.
    """
    from rebaser.cli.commands.running.bench_load import LoadPlan, run_load
    from rebaser.cli.options import checked_key
    from rebaser.cli.runner import run_async

    checked_key(workspace, "bench")
    plan = LoadPlan(workspace, change_sets, in_flight, requests, derived, seconds)
    reports: list[LoadReport] = []
    code = run_async(partial(run_load, nats, prefix, plan, reports))
    if code:
        return code
    [report] = reports
    if json:
        console.write_json(report.as_object())
    else:
        _show(report)
    if report.wrong:
        raise CommandFailed(f"a check of the results failed: {report.wrong[0]}" + _more(len(report.wrong)))
    return 0


def _show(report: "LoadReport") -> None:
    rows = []
    for name, phase in (("applied", report.applied), ("derived", report.derived)):
        if phase.count:
            times = (f"{phase.percentile(share) * 1000:.2f}" for share in (0.5, 0.95, 0.99))
            rows.append((name, f"{phase.count:,}", f"{phase.rate:,.0f}", *times))
    console.table(("until", "requests", "requests/s", "p50 ms", "p95 ms", "p99 ms"), rows, right=(1, 2, 3, 4, 5))
    plan = report.plan
    console.write_line(f"{plan.change_sets} change sets, {plan.in_flight} in flight in each: {report.names}")
    if report.cut_short:
        console.write_line(f"stopped after {plan.seconds:g} s, before all requests were sent")
    if not report.wrong:
        console.write_line(
            f"exact: {report.checked:,} requests were applied once and in order, and all values are correct"
        )


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
