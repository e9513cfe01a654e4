"""`rebaser bench`: load against a running system."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix

if TYPE_CHECKING:
    from rebaser.cli.commands.bench_load import LoadReport


def bench(
    *,
    change_sets: Annotated[int, typer.Option(min=1, max=10_000, help="Change sets that get requests at once.")] = 4,
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Requests in flight in each change set.")] = 16,
    requests: Annotated[int, typer.Option(min=1, max=10_000_000, help="Requests in all, to be applied.")] = 4000,
    derived: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Requests after that, each waiting for derived values.")
    ] = 40,
    seconds: Annotated[float, typer.Option(min=1, help="Stop sending after this long, whatever is left.")] = 60.0,
    workspace: Annotated[str, typer.Option(metavar="WS", help="Workspace of the new change sets.")] = "bench",
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Put load on a running system and measure it.

    Makes new change sets, sends requests of one update each, and prints requests per second and the latency of
    replies: when applied, and when the derived total of the change set was true again. Then it reads the logs and the
    values back: every request applied once and in order, every value exact. Exit code 1 if not.
    """
    from rebaser.cli.commands.bench_load import LoadPlan, run_load
    from rebaser.cli.options import checked_key
    from rebaser.cli.runner import run_async

    checked_key(workspace, "bench")
    plan = LoadPlan(workspace, change_sets, in_flight, requests, derived, seconds)
    found: list[LoadReport] = []
    code = run_async(partial(run_load, nats, prefix, plan, found))
    if code:
        return code
    report = found[0]
    if json:
        console.write_json(report.as_object())
    else:
        _show(report)
    if report.wrong:
        raise CommandFailed(f"not exact: {report.wrong[0]}" + _more(len(report.wrong)))
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
        console.write_line(f"exact: {report.checked:,} requests each applied once and in order, all values right")


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
