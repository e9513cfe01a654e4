"""`rebaser demo`: runs a tour of the whole system with real data, and stops everything that it started."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from rebaser.cli.commands.running.serve import Spark


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the data of the demo.")] = Path(".rebaser/demo"),
    spark: Spark = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="REBASER_LOG_LEVEL", help="Lowest level that is logged."),
    ] = "warning",
) -> int:
    """Take a tour with real data, in about a minute.

    The demo starts nats-server, a server and Spark, and turns the Python distributions installed here into a graph of
    values: sizes and requirements are set, closures and totals are derived. Then it edits the graph: a package grows, a
    requirement is added, a cycle is made and removed. It tries out an edit on a branch, shows which derived values
    change as a result, settles a conflict, applies the branch, and then undoes the apply. It compares every value with
    one that is computed directly from importlib.metadata; the exit code is 1 if any value differs. At the end, it stops
    everything that it started.
    """
    from rebaser.cli import logs
    from rebaser.cli.spark_prestart import prestarted_spark
    from rebaser.settings import load_settings

    logs.configure(log_level, "console")
    settings = load_settings(spark=spark, scratch=data / "spark")
    with prestarted_spark(settings) as jvm:
        from rebaser.cli.demo.run import play
        from rebaser.cli.demo.screen import Screen
        from rebaser.cli.runner import run_async

        screen = Screen()
        try:
            return run_async(partial(play, data, settings, jvm, screen))
        finally:
            screen.stop()
