"""`rebaser demo`: the whole system on real input, from nothing to nothing left running."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from rebaser.cli.commands.serve import Spark


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder that keeps what the demo made.")] = Path(
        ".rebaser/demo"
    ),
    spark: Spark = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="REBASER_LOG_LEVEL", help="Least important event to log."),
    ] = "warning",
) -> int:
    """See it work on real input, in a minute.

    The Python distributions installed here become a graph of values, and somebody edits it. Starts nats-server, a
    server and Spark, sends sizes and requirements, lets closures and totals be derived, makes a package grow, adds a
    requirement, makes and mends a cycle, and ends everything it started. Exit code 1 if any figure differs from one
    computed straight from importlib.metadata.
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
